"""Chooses the geometry of each launch: rules match launches and set numbers, and every number keeps its reason."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Literal

from pydantic import Field, model_validator

from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.weight_layout import WeightLayout
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.compiler.schedule.record import Record
from mlxr.compiler.spec.fields import INT32_MAX, Contradictions, Count, FormatName, Frozen

Origin = Literal["measured", "published", "predicted"]
"""Where a number is from: we measured it, the maker published it, or it follows from what is known."""

_SIZES = tuple(size.name for size in fields(Geometry))


@dataclass(frozen=True)
class Site:
    """What a launch is for, as rules see it.

    Attributes:
        label: the readable part of its kernel's name: `qkv`, `gate_up`, `logits`, `experts`, `attend`, ...; `step` of a
            whole decode step, `chunk` of a step of prompts, `arena` of the cache itself.
        outputs: rows of the weight (of one expert's); of attention and the cache KV heads; of a step or chunk layers.
        columns: of the weight; of attention and the cache head_dim; of a step or chunk the hidden size.
        formats: of the weight, in order; of attention and the cache its element type; of a step those of all matrices.
        bits: of a weight with its scales, on average; of attention and the cache those of a cached number.
    """

    label: str
    outputs: int
    columns: int
    formats: tuple[str, ...]
    bits: float

    def __str__(self) -> str:
        return f"{self.label} {self.outputs}x{self.columns} {'+'.join(self.formats)}".rstrip()

    @classmethod
    def of_weight(cls, label: str, layout: WeightLayout, experts: int = 1) -> "Site":
        """The site of a launch that multiplies by a weight, of which each expert has an equal part."""
        bits = 8 * layout.size_bytes / (layout.rows * layout.columns)
        return cls(label, layout.rows // experts, layout.columns, tuple(map(str, layout.formats)), bits)

    @classmethod
    def of_arena(cls, label: str, arena: ArenaGeometry) -> "Site":
        """The site of the cache or of a launch that reads it: one for all layers, which share the partition's size."""
        bits = 8 * arena.row_bytes / arena.head_dim
        return cls(label, arena.num_kv_heads, arena.head_dim, (str(arena.dtype),), bits)

    @classmethod
    def of_chunk(cls, num_layers: int, hidden_size: int) -> "Site":
        """The site of a step of prompts as a whole."""
        return cls("chunk", num_layers, hidden_size, (), 0.0)

    @classmethod
    def of_step(cls, num_layers: int, hidden_size: int, layouts: Sequence[WeightLayout]) -> "Site":
        """The site of a whole decode step, whose matrices lie so."""
        formats = sorted({str(format) for layout in layouts for format in layout.formats})
        numbers = sum(layout.rows * layout.columns for layout in layouts)
        bits = 8 * sum(layout.size_bytes for layout in layouts) / numbers
        return cls("step", num_layers, hidden_size, tuple(formats), bits)


class GeometryRule(Frozen):
    """Sets some sizes of the launches that meet all its conditions; a condition left out is met."""

    sizes: Annotated[dict[str, Annotated[int, Field(ge=0, le=INT32_MAX, strict=True)]], Field(min_length=1)]
    """Fields of `Geometry`, and what they are."""
    because: Annotated[str, Field(min_length=1)]
    """Why, for people; `inspect` shows it."""
    origin: Origin
    """Where the choice is from."""
    sites: tuple[str, ...] = ()
    """Only these launches, as `Site` writes them: `qkv 2560x2048 bf16`."""
    labels: tuple[str, ...] = ()
    """Only launches with one of these labels."""
    formats: tuple[FormatName | Literal["q8"], ...] = ()
    """Only where every format of the weight (of attention: the cache's) is one of these."""
    min_outputs: Count | None = None
    """Only weights of at least so many rows."""
    max_outputs: Count | None = None
    """Only weights of at most so many rows."""
    min_columns: Count | None = None
    """Only weights of at least so many columns."""
    max_columns: Count | None = None
    """Only weights of at most so many columns."""
    min_bits: Count | None = None
    """Only weights of at least so many bits, scales included."""
    max_bits: Count | None = None
    """Only weights of at most so many bits, scales included."""

    @model_validator(mode="after")
    def _check(self) -> "GeometryRule":
        wrong = Contradictions()
        for name in self.sizes:
            if name not in _SIZES:
                wrong.add("sizes", f'"{name}" is not a size of the geometry', f"sizes are {', '.join(_SIZES)}")
        for what in ("outputs", "columns", "bits"):
            low, high = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if low is not None and high is not None and low > high:
                wrong.add(f"min_{what}", f"{low} is more than max_{what}, {high}: no launch meets both")
        wrong.refuse()
        return self

    def holds(self, site: Site) -> bool:
        """Whether a launch meets all conditions."""
        return (
            (not self.sites or str(site) in self.sites)
            and (not self.labels or site.label in self.labels)
            and (not self.formats or set(site.formats) <= set(self.formats))
            and _within(site.outputs, self.min_outputs, self.max_outputs)
            and _within(site.columns, self.min_columns, self.max_columns)
            and _within(site.bits, self.min_bits, self.max_bits)
        )


def _within(value: float, low: int | None, high: int | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


class ChosenGeometry(Record):
    """What was chosen for a kernel.

    Attributes:
        site: the launches it is for, as rules name them.
        sizes: the sizes of `Geometry` that its kind of kernel depends on.
        why: the reasons of those that are not the default.
    """

    site: str
    sizes: Mapping[str, int]
    why: Mapping[str, str] = {}

    def without(self, unused: Collection[str]) -> "ChosenGeometry":
        """The same but for sizes that mean nothing to the kernel."""
        sizes = {name: size for name, size in self.sizes.items() if name not in unused}
        return self.model_copy(update={"sizes": sizes, "why": {n: why for n, why in self.why.items() if n in sizes}})


@dataclass(frozen=True)
class Choice:
    """The geometry of one site, and why."""

    site: Site
    geometry: Geometry
    why: Mapping[str, str]

    def part(self, *prefixes: str) -> ChosenGeometry:
        """The sizes whose names begin with one of the prefixes, such as `matvec_`."""
        names = [name for name in _SIZES if name.startswith(prefixes)]
        return ChosenGeometry(
            site=str(self.site),
            sizes={name: getattr(self.geometry, name) for name in names},
            why={name: self.why[name] for name in names if name in self.why},
        )


@dataclass(frozen=True)
class GeometryTable:
    """The geometry of every launch: `base`, changed by each rule that holds, in order, so that later ones win."""

    base: Geometry = field(default_factory=Geometry)
    rules: tuple[GeometryRule, ...] = ()

    def choose(self, site: Site) -> Choice:
        """The geometry of a site.

        Raises:
            PlanError: the rules together give sizes that no kernel is made for.
        """
        sizes: dict[str, int] = {}
        why: dict[str, str] = {}
        for rule in self.rules:
            if rule.holds(site):
                sizes |= rule.sizes
                why |= dict.fromkeys(rule.sizes, f"{rule.because} ({rule.origin})")
        return Choice(site, replace(self.base, **sizes), why)

"""What the tuner tries, as the fields of the geometry say it, and the batches in which a size matters."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mlxr.compiler.artifact.geometry_rule import GeometryRule
from mlxr.compiler.errors import PlanError
from mlxr.compiler.schedule.geometry import (
    AttendTile,
    DecodeAttention,
    Geometry,
    MatrixTiles,
    OneRow,
    SeveralRows,
)
from mlxr.compiler.schedule.size_record import RowThreshold, Values
from mlxr.tuning.record import Sizes

EVERYWHERE = "all quantised weights"
"""The site of a rule for all launches."""

_THRESHOLD_ROWS = (2, 4, 8, 12, 16, 24, 32, 48, 64, 128, 256)


@dataclass(frozen=True)
class Candidates:
    """What is tried of each size; sizes go by their flat names, in the order of the geometry.

    Attributes:
        values: of sizes that are varied one after the other: the values to time.
        variants: of sizes that decide which kernel runs: the changes to time, each with sizes to start from. These come
            before other sizes, and on chips alone whose rules know of them.
        thresholds: numbers of rows from which something else runs.
        threshold_rows: rows at which both sides of a threshold are timed.
    """

    values: Mapping[str, tuple[int, ...]]
    variants: Mapping[str, tuple[Mapping[str, int], ...]]
    thresholds: Mapping[str, RowThreshold]
    threshold_rows: tuple[int, ...] = _THRESHOLD_ROWS

    @classmethod
    def of_geometry(cls) -> "Candidates":
        """All that the fields of the geometry ask for."""
        tuned = {name: size.tuning for name, size in Geometry.sizes().items()}
        return cls(
            values={name: tuning.values for name, tuning in tuned.items() if isinstance(tuning, Values)},
            variants=Geometry.variants(),
            thresholds={name: tuning for name, tuning in tuned.items() if isinstance(tuning, RowThreshold)},
        )

    def changes_of(self, name: str) -> tuple[Sizes, ...]:
        """What to try of a size, with other sizes that go with it; empty where there is nothing to choose."""
        if name in self.variants:
            return tuple(dict(change) for change in self.variants[name])
        return tuple({name: value} for value in self.values.get(name, ()))

    def variants_of(self, rules: Iterable[GeometryRule]) -> tuple[str, ...]:
        """The sizes that decide which kernel runs, as far as a chip's rules know of them."""
        known = {name for rule in rules for name, value in rule.sizes.items() if value}
        return tuple(name for name in self.variants if name in known)


CANDIDATES = Candidates.of_geometry()


def is_possible(sizes: dict[str, int]) -> bool:
    """Whether there are kernels of these sizes."""
    try:
        Geometry.of(**sizes)
    except PlanError:
        return False
    return True


def rule_for(site: str, sizes: dict[str, int], because: str) -> GeometryRule:
    """A measured rule for one kind of launch alone, or for all."""
    sites = () if site == EVERYWHERE else (site,)
    return GeometryRule(sizes=sizes, because=because, origin="measured", sites=sites)


@dataclass(frozen=True)
class Scenario:
    """A batch, and the sizes that are chosen by its times.

    Attributes:
        name: for people.
        sizes: their flat names.
        sequences: of a decode step; 0: a prefill step.
        tokens: of each sequence: in the cache with the new one, or of the prompt.
        every_row: whether a prompt gives logits of all its tokens.
    """

    name: str
    sizes: tuple[str, ...]
    sequences: int
    tokens: int
    every_row: bool = False


def scenarios(max_sequences: int, max_tokens: int, context: int) -> tuple[Scenario, ...]:
    """The batches of an artifact: one sequence, several, a prompt.

    Args:
        max_sequences: what the artifact holds.
        max_tokens: of a step.
        context: tokens of a sequence in decode.
    """
    few = min(8, max_tokens)
    of_several = (*SeveralRows.names(), *MatrixTiles.names())
    several = Scenario(f"a prompt of {few} tokens", of_several, 0, few)
    if max_sequences > 1:
        count = min(8, max_sequences)
        several = Scenario(f"{count} sequences", of_several, count, context)
    of_one = (*OneRow.names(), *DecodeAttention.names())
    return (
        Scenario(f"1 sequence of {context} tokens", of_one, 1, context),
        several,
        Scenario(f"a prompt of {max_tokens} tokens", AttendTile.names(), 0, max_tokens),
    )

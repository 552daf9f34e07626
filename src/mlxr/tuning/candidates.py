"""What the tuner tries, as the fields of the geometry declare it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mlxr.compiler.artifact.geometry_rule import GeometryRule
from mlxr.compiler.errors import PlanError
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.compiler.schedule.size_record import RowThreshold, Values
from mlxr.tuning.site_tuning import Sizes

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

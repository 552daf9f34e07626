"""Things in whole numbers, divided among ranks by their fractions."""

import math
from collections.abc import Sequence

from mlxr.compiler.errors import PlanError
from mlxr.compiler.spec.model import ModelSpec

Range = tuple[int, int]
"""[first, last)."""


def divide(count: int, weights: Sequence[float]) -> list[int]:
    """`count` things in parts as near to the weights as whole numbers can be, each at least 1; count >= parts.

    The parts' ends are the rounded ends of the weights', so that equal weights give parts that differ by one at most.
    """
    ends: list[int] = []
    total = sum(weights)
    for index in range(1, len(weights) + 1):
        end = round(count * sum(weights[:index]) / total)
        low, high = (ends[-1] if ends else 0) + 1, count - (len(weights) - index)
        ends.append(min(max(end, low), high))
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def ranges_of(counts: Sequence[int]) -> list[Range]:
    """The ranges of parts of so many, one after the other."""
    ends = [sum(counts[: index + 1]) for index in range(len(counts))]
    return [(end - count, end) for count, end in zip(counts, ends, strict=True)]


def shared_block(spec: ModelSpec, names: Sequence[str]) -> int:
    """Columns that no rank may divide in any of these matrices."""
    return math.lcm(*(spec.weights.of_tensor(name).block_elements for name in names))


def too_few(what: str, ranks: int, why: str) -> PlanError:
    """What to raise where something cannot be divided."""
    return PlanError(
        f"{what} cannot be divided among {ranks} ranks: {why}; use fewer tensor ranks, stages instead (pipeline), or "
        "another weight format"
    )

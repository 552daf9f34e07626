"""The filters of `filters.py` for a row in which very many tokens may pass: without sorting all of them."""

import numpy as np
import numpy.typing as npt

from mlxr.runtime.engine.sampling.filters import Filters, Floats, Whole, distance

_ZERO = np.float32(0)


def keep_in_long_row(weights: Floats, filters: Filters) -> Floats:
    """Filters a row.

    Args:
        weights: [1, n], f32, of all tokens.
        filters: of the row, without top-k.

    Returns:
        The weights, with 0 for tokens that do not pass.
    """
    row = weights[0]
    if filters.min_p is not None:
        row = np.where(row >= filters.min_p[0, 0], row, _ZERO)
    if filters.typical_p is not None:
        whole = Whole.of(row[None], True)
        target = float(filters.typical_p[0, 0] * whole.total[0, 0])
        row = np.where(_first(distance(row[None], whole)[0], row, target), row, _ZERO)
    if filters.top_p is not None:
        target = float(filters.top_p[0, 0] * Whole.of(row[None], False).total[0, 0])
        row = np.where(_first(row, row, target, falling=True), row, _ZERO)
    return np.asarray(row[None])


def _first(values: Floats, weights: Floats, target: float, falling: bool = False) -> npt.NDArray[np.bool_]:
    """The first tokens whose weights together reach a target, by rising or falling value and then by rising id.

    Args:
        values: [n], f32, 0 or more.
        weights: [n], f32.
        target: the sum to reach; all tokens where rounding leaves it out of reach.
        falling: whether the tokens with the greatest values are the first.
    """
    # The upper halves of floats that are not negative are in the order of their sizes: they sort the tokens into bins.
    bins = values.view(np.uint16)[1::2]
    sums = np.bincount(bins, weights)
    ends = (sums[::-1] if falling else sums).cumsum()
    place = min(int(ends.searchsorted(target)), len(ends) - 1)
    last = len(ends) - 1 - place if falling else place
    kept: npt.NDArray[np.bool_] = bins > last if falling else bins < last
    inside = np.flatnonzero(bins == last)
    inside = inside[(-values[inside] if falling else values[inside]).argsort(kind="stable")]
    reached = weights[inside].cumsum(dtype=np.float64) + (ends[place - 1] if place else 0)
    kept[inside[: int((reached < target).sum()) + 1]] = True
    return kept

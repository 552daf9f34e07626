"""The greatest numbers of long rows, without sorting them."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.intp]
_COLUMNS = 1024


def floor_of_top(values: Floats, count: Indices) -> Floats:
    """A number for each row, [rows, 1], that at least `count` of the row's values reach: most often, few more.

    Disjoint sets of values each have a maximum: the k-th greatest of these is at most the k-th greatest value.

    Args:
        values: [rows, n], f32, without NaN.
        count: [rows, 1], at least 1.
    """
    rows, size = values.shape
    depth = max(1, size // _COLUMNS)
    columns = size // depth
    maxima = values[:, : columns * depth].reshape(rows, depth, columns).max(axis=1)
    places = np.maximum(columns - count[:, 0], 0)
    maxima.partition(sorted(set(places.tolist())), axis=1)
    return np.where(count <= columns, maxima[np.arange(rows), places][:, None], np.float32(-np.inf))


def greatest_columns(values: Floats, count: int, floor: float) -> Indices:
    """The columns of the greatest values of a row, rising; of equal values the first ones.

    Args:
        values: [n], f32, without NaN.
        count: how many; all that reach the floor where these are fewer.
        floor: values below it do not count.
    """
    columns: Indices = (values >= floor).nonzero()[0]
    if len(columns) <= count:
        return columns
    reaching = values[columns]
    least = np.partition(reaching, len(columns) - count)[len(columns) - count]
    kept: Indices = columns[reaching >= least]
    if len(kept) > count:  # of those that equal the least some are too many
        equal = (values[kept] == least).nonzero()[0]
        kept = np.delete(kept, equal[count - len(kept) :])
    return kept

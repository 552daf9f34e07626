"""Finds the few tokens of each row that can pass its filters, so that a large vocabulary is not sorted."""

import numpy as np

from mlxr.runtime.arrays.greatest import floor_of_top, greatest_columns
from mlxr.runtime.engine.sampling.filters import Filters, Floats, Indices, padded

MOST = 4096
"""A row with more candidates is filtered as a whole."""
LOWEST = np.finfo(np.float32).min
"""The lowest logit of a token that may come."""


def floor_of_min_p(greatest: Floats, filters: Filters) -> Floats:
    """A logit for each row, [rows, 1], below which no token passes min-p."""
    assert filters.min_p is not None, "without it, any token may pass"
    # exp rounds, and so does the difference: a candidate too many is no harm
    with np.errstate(divide="ignore"):  # a min-p of 0 lets any token pass
        least = np.log(filters.min_p, dtype=np.float64) - 1e-3
    floor = greatest + filters.temperature * least
    return np.nextafter(np.maximum(floor, LOWEST).astype(np.float32), LOWEST)


def candidates_of_top(logits: Floats, count: Indices) -> Indices:
    """The tokens with the greatest logits, of equal ones the lower ids; none whose logit is -inf.

    All that comes after top-k depends on these alone: not on logits, or a number of columns, that do not pass.

    Args:
        logits: [rows, vocab], f32.
        count: how many of each row, [rows, 1].

    Returns:
        As the ids of `candidates`, for all rows.
    """
    floor = np.maximum(floor_of_top(logits, count), LOWEST)
    columns = [greatest_columns(*row) for row in zip(logits, count[:, 0].tolist(), floor[:, 0].tolist(), strict=True)]
    ids = np.full((len(logits), padded(max(1, *map(len, columns)))), -1)
    for row, of_row in zip(ids, columns, strict=True):
        row[: len(of_row)] = of_row
    return ids


def candidates(values: Floats, floor: Floats) -> tuple[Indices, Indices]:
    """The tokens whose value reaches the floor.

    Returns:
        Which rows have at most `MOST` of them: [n]. Their ids, rising, then -1 as often as the row has fewer than
        others: [n, m], m a multiple of `BLOCK`.
    """
    rows, size = values.shape
    flat = np.flatnonzero(values >= floor)
    if rows == 1:
        ids = np.full((1, padded(max(1, len(flat)))), -1)
        ids[0, : len(flat)] = flat
        return (np.arange(1), ids) if len(flat) <= MOST else (np.arange(0), ids[:0])
    ends = flat.searchsorted(np.arange(1, rows + 1) * size)
    counts = np.diff(ends, prepend=0)
    few = np.flatnonzero(counts <= MOST)
    ids = np.full((len(few), padded(max(1, counts[few].max(initial=0)))), -1)
    for place, row in enumerate(few.tolist()):
        count = counts[row]
        np.subtract(flat[ends[row] - count : ends[row]], row * size, out=ids[place, :count])
    return few, ids

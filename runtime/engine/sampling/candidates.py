"""Finds the few tokens of each row that can pass its filters, so that a large vocabulary is not sorted."""

import numpy as np

from mlxr.runtime.engine.sampling.filters import Filters, Floats, Indices, padded

MOST = 4096
"""A row with more candidates is filtered as a whole."""
LOWEST = np.finfo(np.float32).min
"""The lowest logit of a token that may come."""
_COLUMNS = 1024


def floor_of_filters(logits: Floats, greatest: Floats, filters: Filters) -> Floats:
    """A logit for each row, [rows, 1], below which no token passes top-k, or else min-p: one of them is in use."""
    if filters.top_k is not None:
        return np.maximum(floor_of_top(logits, filters.top_k), LOWEST)
    assert filters.min_p is not None, "without either, any token may pass"
    # exp rounds, and so does the difference: a candidate too many is no harm
    with np.errstate(divide="ignore"):  # a min-p of 0 lets any token pass
        least = np.log(filters.min_p, dtype=np.float64) - 1e-3
    floor = greatest + filters.temperature * least
    return np.nextafter(np.maximum(floor, LOWEST).astype(np.float32), LOWEST)


def floor_of_top(values: Floats, count: Indices) -> Floats:
    """A number for each row, [rows, 1], that at least `count` of the row's values reach: most often, few more.

    Disjoint sets of values each have a maximum: the k-th greatest of these is at most the k-th greatest value.
    """
    rows, size = values.shape
    depth = max(1, size // _COLUMNS)
    columns = size // depth
    maxima = values[:, : columns * depth].reshape(rows, depth, columns).max(axis=1)
    places = np.maximum(columns - count[:, 0], 0)
    maxima.partition(sorted(set(places.tolist())), axis=1)
    return np.where(count <= columns, maxima[np.arange(rows), places][:, None], np.float32(-np.inf))


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

"""The last exchange of a step: rank 0 gets its result, or, where these are enough, only the greatest logits.

A rank picks the greatest of its own columns, of equal ones the first. The greatest of all ranks are among them.
"""

from itertools import accumulate, pairwise

import numpy as np

from mlxr.compiler.artifact import RankPlan
from mlxr.runtime.arrays.greatest import floor_of_top, greatest_columns
from mlxr.runtime.hosts.exchange import Floats
from mlxr.runtime.parallel.collectives import Collectives


def gather_result(collectives: Collectives, rank: RankPlan, x: Floats | None, out: Floats, tops: int) -> None:
    """Writes the result to out at rank 0; all ranks call it with the same `tops`.

    Args:
        collectives: of this rank.
        rank: this one.
        x: its columns, [rows, columns]; None: it has none.
        out: [rows, all columns]; at other ranks, memory to work in.
        tops: see `Batch.tops`. At least so many logits of each row are in out; the others are -inf.
    """
    bounds = rank.result_bounds
    counts = [min(tops, end - begin) for begin, end in pairwise(bounds)]
    ends = (0, *accumulate(2 * count for count in counts))
    if not 0 < ends[-1] < bounds[-1]:
        collectives.gather(x, bounds, out)
        return
    gathered = np.empty((len(out), ends[-1]), np.float32)
    collectives.gather(None if x is None else _tops(x, min(tops, x.shape[1])), ends, gathered)
    if rank.rank:
        return
    out.fill(-np.inf)
    for first, begin, count in zip(bounds, ends, counts, strict=False):
        values, columns = gathered[:, begin : begin + count], gathered[:, begin + count : begin + 2 * count]
        np.put_along_axis(out, columns.astype(np.intp) + first, values, axis=1)


def _tops(x: Floats, count: int) -> Floats:
    """The greatest logits of each row, then their columns: [rows, 2 * count]; only the first NaN of a row with NaNs."""
    assert x.shape[1] <= 1 << 24, "f32 has all of these columns"
    places = np.arange(len(x))
    columns = np.repeat(x.argmax(axis=1)[:, None], count, axis=1)
    if count > 1:
        floors = floor_of_top(x, np.full((len(x), 1), count))[:, 0].tolist()
        for i in np.flatnonzero(~np.isnan(x[places, columns[:, 0]])).tolist():
            columns[i] = greatest_columns(x[i], count, floors[i])
    return np.concatenate([x[places[:, None], columns], columns], axis=1, dtype=np.float32)

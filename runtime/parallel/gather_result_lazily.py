"""The last exchange of a step as lazy MLX ops, with the result of `gather_result`.

Nothing here depends on which of equal values MLX takes first, or on what it makes of a NaN: max and sort get integers,
and where a column follows from the result, it is a part of the integer.
"""

import functools
from collections.abc import Callable
from itertools import accumulate, pairwise

import mlx.core as mx

from mlxr.compiler.artifact import RankPlan
from mlxr.runtime.hosts.exchange import EXACT_IDS
from mlxr.runtime.parallel.collectives import Collectives

_GROUP = 32
"""Columns that are compared at first by their greatest alone: of a row of 64K, 2K groups are sorted instead."""
_ZERO, _INFINITY, _NAN = 0x80000000, 0x7F800000, 0xFFFFFFFF


def gather_result_lazily(
    collectives: Collectives, rank: RankPlan, x: mx.array | None, rows: int, tops: int
) -> mx.array:
    """At rank 0, the result, [rows, all columns], f32; elsewhere an array of this shape that depends on the exchange.

    Args:
        collectives: of this rank.
        rank: this one.
        x: its columns, [rows, columns], f32; None: it has none.
        rows: at least one.
        tops: see `Batch.tops`. At least so many logits of each row are in the result; the others are -inf.
    """
    bounds = rank.result_bounds
    counts = [min(tops, end - begin) for begin, end in pairwise(bounds)]
    ends = (0, *accumulate(2 * count for count in counts))
    if not 0 < ends[-1] < bounds[-1]:
        return collectives.gather_lazily(x, bounds, rows)
    own = None if x is None or not x.shape[1] else _tops(x, min(tops, x.shape[1]))
    gathered = collectives.gather_lazily(own, ends, rows)
    if rank.rank:
        return mx.broadcast_to(gathered.reshape(-1)[:1], (rows, bounds[-1]))  # a view
    values, columns = [], []
    for first, begin, count in zip(bounds, ends, counts, strict=False):
        values.append(gathered[:, begin : begin + count])
        columns.append(gathered[:, begin + count : begin + 2 * count].astype(mx.int32) + first)
    others = mx.full((rows, bounds[-1]), -mx.inf)
    return mx.put_along_axis(others, mx.concatenate(columns, axis=1), mx.concatenate(values, axis=1), axis=1)


def _tops(x: mx.array, count: int) -> mx.array:
    """The greatest logits of each row, then their columns: [rows, 2 * count]; only the first NaN of a row with NaNs.

    They are in the `count` groups with the greatest maxima: a logit elsewhere has one before it in each of these.
    """
    rows, size = x.shape
    assert size <= EXACT_IDS, "f32 has all of these columns"
    groups = -(-size // _GROUP)
    padding = (0, groups * _GROUP - size)  # of zeros, which are below every key
    to_keys = _to_keys(mx.default_device().type)
    keys = mx.pad(to_keys(x.view(mx.uint32)), [(0, 0), padding]).reshape(rows, groups, _GROUP)
    maxima = mx.max(keys, axis=2)
    of_group = _first(maxima, mx.arange(groups, dtype=mx.uint32), min(count, groups))[:, :, None]
    inside = (of_group * _GROUP + mx.arange(_GROUP, dtype=mx.uint32)).reshape(rows, -1)
    columns = _first(mx.take_along_axis(keys, of_group, axis=1).reshape(rows, -1), inside, count)
    if count > 1:
        columns = mx.where(mx.max(maxima, axis=1, keepdims=True) == _NAN, columns[:, -1:], columns)
    return mx.concatenate([mx.take_along_axis(x, columns, axis=1), columns.astype(mx.float32)], axis=1)


@functools.cache
def _to_keys(device: mx.DeviceType) -> Callable[[mx.array], mx.array]:
    """`_keys`, as one kernel on a GPU (on a CPU MLX would need a C++ compiler for it)."""
    return mx.compile(_keys, shapeless=True) if device == mx.gpu else _keys


def _keys(bits: mx.array) -> mx.array:
    """Integers in the order of f32 with these bits, u32, above 0: both zeros have one, and all NaNs, the greatest."""
    magnitude = bits & 0x7FFFFFFF
    keys = mx.where(bits == magnitude, _ZERO + magnitude, _ZERO - magnitude)
    return mx.where(magnitude > _INFINITY, mx.array(_NAN, mx.uint32), keys)


def _first(keys: mx.array, columns: mx.array, count: int) -> mx.array:
    """The columns of each row's greatest keys, of equal ones the lowest, [rows, count], u32; the greatest is last.

    Args:
        keys: [rows, n], u32.
        columns: no two of a row are equal: [n] or [rows, n], u32.
        count: at most n.
    """
    unique = (keys.astype(mx.uint64) << 32) | (_NAN - columns).astype(mx.uint64)
    unique = mx.max(unique, axis=1, keepdims=True) if count == 1 else mx.sort(unique, axis=1)[:, -count:]
    return _NAN - unique.astype(mx.uint32)  # the lower half

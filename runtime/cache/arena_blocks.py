"""Blocks of a group of the arena, or slots of states, as bytes, where the CPU shares the arena's memory.

The form is the same for both layouts of the arena: store by store, all layers of the block. Without a group (None),
blocks are slots. Callers wait for launches that are under way before they call these functions.
"""

from collections.abc import Iterator, Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import Allocation, ArenaGeometry
from mlxr.runtime.cache.arena import Arena

Bytes = npt.NDArray[np.uint8]


def block_bytes(geometry: ArenaGeometry, group: int | None = 0) -> int:
    """Bytes of one block, in all stores and layers of the group."""
    return sum(allocation.unit_bytes for allocation in geometry.of_group(group))


def check_blocks(
    geometry: ArenaGeometry, block_ids: Sequence[int], data: Bytes | None = None, group: int | None = 0
) -> None:
    """Asserts that there are blocks, that they exist, and that the data, [blocks, block_bytes], are as many."""
    most = geometry.num_slots if group is None else geometry.groups[group].num_blocks
    assert len(block_ids), "no blocks: the caller skips the call"
    assert all(0 <= block_id < most for block_id in block_ids), f"{block_ids} of {most}"
    if data is not None:
        want = (len(block_ids), block_bytes(geometry, group))
        assert data.dtype == np.uint8 and data.shape == want, f"{data.dtype} {data.shape}, expected uint8 {want}"


def read_blocks(arena: Arena, block_ids: Sequence[int], group: int | None = 0) -> Bytes:
    """A copy of these blocks: [blocks, block_bytes]."""
    check_blocks(arena.geometry, block_ids, group=group)
    data = np.empty((len(block_ids), block_bytes(arena.geometry, group)), np.uint8)
    for rows, part in _parts(arena, data, group):
        for row, block_id in zip(part, block_ids, strict=True):
            row[...] = rows[block_id]
    return data


def write_blocks(arena: Arena, block_ids: Sequence[int], data: Bytes, group: int | None = 0) -> None:
    """Writes these blocks: `data` is [blocks, block_bytes], as `read_blocks` returned it."""
    check_blocks(arena.geometry, block_ids, data, group)
    for rows, part in _parts(arena, data, group):
        rows[list(block_ids)] = part


def copy_blocks(arena: Arena, copies: Sequence[tuple[int, int]], group: int | None = 0) -> None:
    """Copies blocks, (source, target), in every store and layer of the group; waits for accesses that are under way."""
    if not copies:
        return
    mx.eval(arena.token)
    sources, targets = (list(ids) for ids in zip(*copies, strict=True))
    bits = arena.bits()
    for allocation in arena.geometry.of_group(group):
        rows = _rows(arena.geometry, allocation, bits[allocation.name].view(np.uint8))
        rows[targets] = rows[sources]


def _parts(arena: Arena, data: Bytes, group: int | None) -> Iterator[tuple[Bytes, Bytes]]:
    """Of each allocation a view of its blocks, and its part of the data: both [blocks, layers, bytes]."""
    bits, begin = arena.bits(), 0
    for allocation in arena.geometry.of_group(group):
        end = begin + allocation.unit_bytes
        part = data[:, begin:end].reshape(len(data), allocation.num_layers, -1)
        yield _rows(arena.geometry, allocation, bits[allocation.name].view(np.uint8)), part
        begin = end


def _rows(geometry: ArenaGeometry, allocation: Allocation, view: Bytes) -> Bytes:
    """An allocation's blocks: a view [blocks, layers, bytes]."""
    assert view.flags.writeable and view.flags.c_contiguous, "a view of the arena must be the arena itself"
    rows = view.reshape(*allocation.shape[:2], -1)
    is_outermost = geometry.layout == "block" or allocation.group is None
    return rows if is_outermost else rows.swapaxes(0, 1)

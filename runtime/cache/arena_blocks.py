"""Blocks of the arena as bytes, where the CPU shares the arena's memory.

The form is the same for both layouts of the arena: K of the block, all layers, then V. Callers wait for launches that
are under way before they call these functions.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import ArenaGeometry
from mlxr.runtime.cache.arena import Arena

Bytes = npt.NDArray[np.uint8]


def block_bytes(geometry: ArenaGeometry) -> int:
    """Bytes of K and V of one block, all layers."""
    return geometry.size_bytes // geometry.num_blocks


def check_blocks(geometry: ArenaGeometry, block_ids: Sequence[int], data: Bytes | None = None) -> None:
    """Asserts that there are blocks, that they exist, and that the data, [blocks, block_bytes], are as many."""
    assert len(block_ids), "no blocks: the caller skips the call"
    assert all(0 <= block_id < geometry.num_blocks for block_id in block_ids), f"{block_ids} of {geometry.num_blocks}"
    if data is not None:
        want = (len(block_ids), block_bytes(geometry))
        assert data.dtype == np.uint8 and data.shape == want, f"{data.dtype} {data.shape}, expected uint8 {want}"


def read_blocks(arena: Arena, block_ids: Sequence[int]) -> Bytes:
    """A copy of these blocks: [blocks, block_bytes]."""
    check_blocks(arena.geometry, block_ids)
    data = np.empty((len(block_ids), block_bytes(arena.geometry)), np.uint8)
    for rows, part in zip(_views(arena), _parts(arena.geometry, data), strict=True):
        for row, block_id in zip(part, block_ids, strict=True):
            row[...] = rows[block_id]
    return data


def write_blocks(arena: Arena, block_ids: Sequence[int], data: Bytes) -> None:
    """Writes these blocks: `data` is [blocks, block_bytes], as `read_blocks` returned it."""
    check_blocks(arena.geometry, block_ids, data)
    for rows, part in zip(_views(arena), _parts(arena.geometry, data), strict=True):
        rows[list(block_ids)] = part


def _views(arena: Arena) -> Iterator[Bytes]:
    """K and V: views [blocks of the arena, layers, bytes]."""
    for bits in arena.bits():
        assert bits.flags.writeable and bits.flags.c_contiguous, "a view of the arena must be the arena itself"
        rows = bits.reshape(*arena.geometry.shape[:2], -1).view(np.uint8)
        yield rows if arena.geometry.layout == "block" else rows.swapaxes(0, 1)


def _parts(geometry: ArenaGeometry, data: Bytes) -> Iterator[Bytes]:
    """K and V of blocks as bytes: views [blocks, layers, bytes]."""
    layer_bytes = block_bytes(geometry) // 2 // geometry.num_layers
    parts = data.reshape(len(data), 2, geometry.num_layers, layer_bytes)
    yield from (parts[:, 0], parts[:, 1])

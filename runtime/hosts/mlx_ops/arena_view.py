"""NumPy views of the arena's bytes: no copies, so writing through one changes the arena that every host sees."""

from collections.abc import Sequence

import mlx.core as mx

from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.mlx_arrays import Bits, as_bits


def layer_rows(array: mx.array, layout: str, layer: int) -> Bits:
    """One layer of K or V: [blocks, block_size, kv_heads, row_elements], as bits."""
    view = as_bits(array)
    assert view.flags.writeable and view.flags.c_contiguous, "a view of the arena must be the arena itself"
    return view[:, layer] if layout == "block" else view[layer]


def copy_blocks(arena: Arena, copies: Sequence[tuple[int, int]]) -> None:
    """Copies blocks, (source, target), K and V in every layer; waits for accesses that are under way."""
    if not copies:
        return
    mx.eval(arena.token)
    sources, targets = (list(ids) for ids in zip(*copies, strict=True))
    for array in (arena.k, arena.v):
        for layer in range(arena.geometry.num_layers):
            rows = layer_rows(array, arena.geometry.layout, layer)
            rows[targets] = rows[sources]

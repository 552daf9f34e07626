"""NumPy views of the arena's bytes: no copies, so writing through one changes the arena that every host sees."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.runtime.arena import Arena

Bits = npt.NDArray[Any]
"""Elements as unsigned integers of their size, because NumPy has no bfloat16."""


def as_bits(array: mx.array) -> Bits:
    """A view of an array's memory, once it is computed."""
    return np.array(array.view(mx.uint16 if array.itemsize == 2 else mx.uint32), copy=False)


def layer_rows(array: mx.array, layout: str, layer: int) -> Bits:
    """One layer of K or V: [blocks, block_size, kv_heads, head_dim], u16 or u32 bits."""
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

"""NumPy views of the arena's bytes: no copies, so writing through one changes the arena that every host sees."""

import mlx.core as mx

from mlxr.runtime.arrays.mlx_arrays import Bits, as_bits


def layer_rows(array: mx.array, layout: str, place: int) -> Bits:
    """One layer of a store, by its place in the array: [blocks, block_size, *row], as bits."""
    view = as_bits(array)
    assert view.flags.writeable and view.flags.c_contiguous, "a view of the arena must be the arena itself"
    return view[:, place] if layout == "block" else view[place]

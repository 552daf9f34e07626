"""Encodes and decodes rows of the KV cache: the numbers of one token and one KV head, as the arena stores them.

A q8 row is head_dim int8 numbers and their f32 scale, absmax / 127: number * scale is the element. A row of zeros has
the scale 0, and one with an element that is not finite has the scale NaN.
"""

import mlx.core as mx
import numpy as np

from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES, Bits, as_bits

_LARGEST = np.float32(127)


def layer_rows(array: mx.array, layout: str, place: int) -> Bits:
    """One layer of a store, by its place in the array: [blocks, block_size, *row], as bits.

    A view without a copy: who writes through it changes the arena that every host sees.
    """
    view = as_bits(array)
    assert view.flags.writeable and view.flags.c_contiguous, "a view of the arena must be the arena itself"
    return view[:, place] if layout == "block" else view[place]


def encode_rows(rows: mx.array, dtype: str) -> Bits:
    """Rows [..., head_dim] as the bits of an arena of that type: [..., row_elements], unsigned integers."""
    if dtype != "q8":
        return as_bits(rows.astype(MLX_DTYPES[dtype]))
    numbers = np.array(rows.astype(mx.float32))
    finite = np.isfinite(numbers).all(axis=-1, keepdims=True)
    scales = np.abs(numbers).max(axis=-1, keepdims=True) / _LARGEST
    scales[~finite] = np.nan
    usable = scales > 0
    # A subnormal scale is so coarse that a quotient may exceed 127.
    quotients = np.divide(numbers, scales, out=np.zeros_like(numbers), where=usable)
    whole = np.clip(np.rint(quotients), -_LARGEST, _LARGEST).astype(np.int8)
    return np.concatenate([whole.view(np.uint8), scales.view(np.uint8)], axis=-1)


def decode_rows(bits: Bits, dtype: str) -> mx.array:
    """The numbers that `encode_rows` stored, in fp32: [..., head_dim]."""
    if dtype != "q8":
        return mx.array(bits).view(MLX_DTYPES[dtype]).astype(mx.float32)
    numbers = np.ascontiguousarray(bits[..., :-4]).view(np.int8)
    scales = np.ascontiguousarray(bits[..., -4:]).view(np.float32)
    return mx.array(numbers.astype(np.float32) * scales)

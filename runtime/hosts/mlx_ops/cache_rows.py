"""Encodes and decodes rows of the KV cache: the numbers of one token and one KV head, as the arena stores them.

A q8 row is head_dim int8 numbers and their f32 scale, absmax / 127: number * scale is the element. A row of zeros has
the scale 0, and one with an element that is not finite has the scale NaN.

In a q4 cache each 32 elements are mixed before they are rounded: multiplied by the Hadamard matrix of 32, of entries 1
and -1, and by 1/8; so an element that is larger than its neighbours does not cost them their precision. The inverse is
the same matrix and 1/4. Steps of the transform, from neighbours to halves, are those of every kernel, so that all write
the same bits. Rows are groups of 32 elements, then a bf16 scale for each group, then zeros up to 4 bytes. A value
(`q4`) has numbers of 6 bits, from -32 to 31, and 4 * number * scale is an element; the scale is the extreme of larger
magnitude, of two equal ones the lower, / -128. First come 16 bytes for each group: byte i has the upper 4 bits of
number i in its low and those of number i + 16 in its high bits; then 8 bytes for each group: byte i has the lower two
bits of numbers i, i + 8, i + 16 and i + 24, the first in its lowest bits. A group of a key (`q4_keys`) has 32 int8
numbers, whose scale is absmax / 127, and number * scale is an element.
"""

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES, Bits, as_bits

_LARGEST = np.float32(127)
_GROUP = 32
_MIXED, _BACK = np.float32(0.125), np.float32(0.25)
"""Factors of the transform and of its inverse."""
_NO_NUMBER = 0x7FC0
_SHIFTS = np.array([[0], [2], [4], [6]], np.uint8)
"""Where numbers i, i + 8, i + 16 and i + 24 of a value have their lower two bits in a byte."""


def layer_rows(array: mx.array, layout: str, place: int) -> Bits:
    """One layer of a store, by its place in the array: [blocks, block_size, *row], as bits.

    A view without a copy: who writes through it changes the arena that every host sees.
    """
    view = as_bits(array)
    assert view.flags.writeable and view.flags.c_contiguous, "a view of the arena must be the arena itself"
    return view[:, place] if layout == "block" else view[place]


def encode_rows(rows: mx.array, dtype: str) -> Bits:
    """Rows [..., head_dim] as the bits of an arena of that type: [..., row_elements], unsigned integers."""
    if dtype not in ("q8", "q4", "q4_keys"):
        return as_bits(rows.astype(MLX_DTYPES[dtype]))
    numbers = np.array(rows.astype(mx.float32))
    if dtype != "q8":
        return _encode_q4(numbers, keys=dtype == "q4_keys")
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
    if dtype in ("q4", "q4_keys"):
        return mx.array(_decode_q4(bits, keys=dtype == "q4_keys"))
    if dtype != "q8":
        return mx.array(bits).view(MLX_DTYPES[dtype]).astype(mx.float32)
    numbers = np.ascontiguousarray(bits[..., :-4]).view(np.int8)
    scales = np.ascontiguousarray(bits[..., -4:]).view(np.float32)
    return mx.array(numbers.astype(np.float32) * scales)


def _encode_q4(numbers: npt.NDArray[np.float32], *, keys: bool) -> Bits:
    with np.errstate(invalid="ignore", over="ignore"):
        groups = hadamard(numbers.reshape(*numbers.shape[:-1], -1, _GROUP)) * _MIXED
        low, high = groups.min(axis=-1), groups.max(axis=-1)
        extreme = np.where(high > -low, high, low)
        exact = np.maximum(high, -low) / _LARGEST if keys else extreme * np.float32(-1 / 128)
        scales = as_bits(mx.array(np.where(extreme != 0, exact, np.float32(0))).astype(mx.bfloat16)).copy()
        scales[~np.isfinite(groups).all(axis=-1)] = _NO_NUMBER
        steps = _of_bf16(scales)[..., None] * np.float32(1 if keys else 4)
        quotients = np.divide(groups, steps, out=np.zeros_like(groups), where=np.abs(steps) > 0)
    outer = numbers.shape[:-1]
    whole = np.rint(np.clip(quotients, *((-_LARGEST, _LARGEST) if keys else (-32, 31)))).astype(np.int8)
    parts = [whole]
    if not keys:
        four, two = (whole >> 2 & 15).view(np.uint8), (whole & 3).view(np.uint8).reshape(*whole.shape[:-1], 4, 8)
        parts = [
            four[..., : _GROUP // 2] | four[..., _GROUP // 2 :] << 4,
            (two << _SHIFTS).sum(axis=-2, dtype=np.uint8),
        ]
    row = np.concatenate([part.view(np.uint8).reshape(*outer, -1) for part in (*parts, scales)], axis=-1)
    return np.concatenate([row, np.zeros((*outer, -row.shape[-1] % 4), np.uint8)], axis=-1)


def _decode_q4(bits: Bits, *, keys: bool) -> npt.NDArray[np.float32]:
    size = _GROUP if keys else _GROUP // 4 * 3
    outer, groups = bits.shape[:-1], bits.shape[-1] // (size + 2)
    scales = _of_bf16(np.ascontiguousarray(bits[..., groups * size : groups * (size + 2)]).view(np.uint16))
    if keys:
        codes = bits[..., : groups * size].reshape(*outer, groups, _GROUP)
    else:
        four = bits[..., : groups * 16].reshape(*outer, groups, 16)
        two = bits[..., groups * 16 : groups * size].reshape(*outer, groups, 1, 8) >> _SHIFTS & 3
        codes = np.concatenate([four << 4, four & 0xF0], axis=-1) | two.reshape(*outer, groups, _GROUP) << 2
    back = hadamard(np.ascontiguousarray(codes).view(np.int8).astype(np.float32) * scales[..., None]) * _BACK
    return back.reshape(*outer, groups * _GROUP)


def _of_bf16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def hadamard(groups: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Groups [..., 32] times the Hadamard matrix of entries 1 and -1."""
    for step in (1, 2, 4, 8, 16):
        pairs = groups.reshape(*groups.shape[:-1], -1, 2, step)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        groups = np.stack([a + b, a - b], axis=-2).reshape(groups.shape)
    return groups

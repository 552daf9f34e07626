"""The fields of a format's blocks, discovered through the packages that define the formats.

A new format needs no entry here: a byte of a block is a scale if a change of it changes all elements as a scale would.
"""

import functools
from typing import Any

import gguf
import mlx.core as mx
import numpy as np

from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.runtime.weights.decode_planes import decode_planes

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float32]]

_CARRIERS = {"f16": np.uint16, "bf16": np.uint16, "f32": np.uint32, "u8": np.uint8}
_FLOATS = {"f16": mx.float16, "bf16": mx.bfloat16, "f32": mx.float32}
_MLX_MODES = ("affine", "mxfp4", "mxfp8", "nvfp4")
_HALF_NAN, _HALF_ONE = b"\x00\x7e", b"\x00\x3c"


def dequantised(format: WeightFormat, planes: list[Bytes]) -> Floats:
    """Rows of a quantised format as numbers, [rows, columns]: from `gguf`, or from MLX for its formats in planes."""
    if format.gguf is not None:
        with np.errstate(all="ignore"):
            return gguf.quants.dequantize(planes[0], gguf.GGMLQuantizationType[format.gguf])
    if format.mlx_mode not in _MLX_MODES:  # no package defines it
        return decode_planes(planes, str(format))
    words = mx.array(planes[0].view(np.uint32))
    others = [_as_mlx(data, str(plane.dtype)) for plane, data in zip(format.planes[1:], planes[1:], strict=True)]
    shape = {"group_size": format.block_elements, "bits": number_bits(format)}
    with mx.stream(mx.cpu):
        if format.affine:
            return np.array(mx.dequantize(words, *others, **shape))
        return np.array(mx.dequantize(words, *others, **shape, mode=format.mlx_mode, dtype=mx.float32))


def number_bits(format: WeightFormat) -> int:
    """Bits of each packed number of a format in planes."""
    return 8 * format.planes[0].block_bytes // format.block_elements


def _as_mlx(plane: Bytes, dtype: str) -> mx.array:
    array = mx.array(plane.view(_CARRIERS[dtype]))
    return array.view(_FLOATS[dtype]).astype(mx.float32) if dtype in _FLOATS else array


@functools.cache
def half_bytes(format: WeightFormat) -> tuple[int, ...]:
    """Offsets of the f16 numbers in a GGUF block: elements become NaN if the number at the offset is NaN."""
    if format.gguf is None:
        return ()
    return tuple(at for at in range(format.block_bytes - 1) if np.isnan(_with_halves(format, {at: _HALF_NAN})).any())


@functools.cache
def half_sizes(format: WeightFormat) -> tuple[float, ...]:
    """A divisor for each f16 number, so that elements of random codes have about size 1 and mean 0."""
    sizes: list[float] = []
    means: list[float] = []
    for at in half_bytes(format):
        numbers = _with_halves(format, {at: _HALF_ONE}, codes=4096)
        means.append(float(numbers.mean()))
        # The second f16 is a shift; the first is a scale.
        sizes.append(float(numbers.std()) if not sizes else -sizes[0] * means[1] / means[0])
    return tuple(sizes)


@functools.cache
def exponent_bytes(format: WeightFormat) -> tuple[int, ...]:
    """Offsets of the 8-bit exponents in a GGUF block: bytes that can make elements huge."""
    if format.gguf is None:
        return ()
    blocks = np.full((format.block_bytes, format.block_bytes), 0x11, np.uint8)
    np.fill_diagonal(blocks, 200)
    huge = np.abs(dequantised(format, [blocks])).max(axis=1) > 1e15
    return tuple(int(at) for at in np.flatnonzero(huge))


def _with_halves(format: WeightFormat, halves: dict[int, bytes], codes: int = 0) -> Floats:
    """Elements of blocks with only these f16 numbers; with `codes`, of that many blocks with random other bits."""
    blocks = np.zeros((max(codes, 1), format.block_bytes), np.uint8)
    if codes:
        blocks[:] = np.random.default_rng(0).integers(0, 256, blocks.shape, np.uint8)
        for at in half_bytes(format):
            blocks[:, at : at + 2] = 0
    for at, half in halves.items():
        blocks[:, at : at + 2] = np.frombuffer(half, np.uint8)
    return dequantised(format, [blocks])

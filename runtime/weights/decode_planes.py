"""Decodes matrices that are stored in planes: MLX's affine formats, and MXFP4 as MLX and Hugging Face store it.

Source: MLX's `mx.dequantize`, for the meaning of the bits.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import Affine, WeightFormat
from mlxr.runtime.weights.element_types import FOUR_BITS, decode, safetensors_type


def decode_planes(planes: Sequence[npt.NDArray[np.uint8]], name: str) -> npt.NDArray[np.float32]:
    """The numbers of some rows.

    Args:
        planes: the rows of each plane, [rows, bytes of a row] uint8.
        name: the name of the format.

    Returns:
        [rows, columns] float32.
    """
    format = WeightFormat(name)
    if format.affine is not None:
        return _affine(planes, format.affine)
    return _DECODERS[format](planes)


def _affine(planes: Sequence[npt.NDArray[np.uint8]], affine: Affine) -> npt.NDArray[np.float32]:
    kind = safetensors_type(affine.scale.upper())
    assert kind is not None, f"{affine.scale} is a type of safetensors"
    scale, bias = (
        np.asarray(decode(np.ascontiguousarray(plane), kind), np.float32)[:, :, None] for plane in planes[1:]
    )
    numbers = _unpack(planes[0], affine.bits).reshape(len(planes[0]), -1, affine.group)
    return (numbers * scale + bias).reshape(len(planes[0]), -1)


def _mxfp4(planes: Sequence[npt.NDArray[np.uint8]]) -> npt.NDArray[np.float32]:
    bits, scales = planes
    nibbles = np.stack([bits & 0xF, bits >> 4], axis=-1).reshape(len(bits), -1, 32)
    powers = np.ldexp(np.float32(1), scales.astype(np.int32) - 127)
    return (FOUR_BITS[nibbles] * powers[:, :, None]).reshape(len(bits), -1)


_DECODERS = {WeightFormat.MXFP4_MLX: _mxfp4}
"""Of each format in planes that is not affine."""


def _unpack(rows: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.float32]:
    """The numbers of a little-endian bit stream along each row: [rows, bytes] to [rows, bytes * 8 / bits]."""
    if bits == 8:
        return rows.astype(np.float32)
    if bits in (2, 4):
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        return (rows[:, :, None] >> shifts & ((1 << bits) - 1)).reshape(len(rows), -1).astype(np.float32)
    # Eight numbers fill `bits` whole bytes.
    words = np.zeros((len(rows), rows.shape[1] // bits), np.uint64)
    for index in range(bits):
        words |= rows[:, index::bits].astype(np.uint64) << np.uint64(8 * index)
    shifts64 = np.arange(0, 8 * bits, bits, dtype=np.uint64)
    numbers = words[:, :, None] >> shifts64 & np.uint64((1 << bits) - 1)
    return numbers.reshape(len(rows), -1).astype(np.float32)

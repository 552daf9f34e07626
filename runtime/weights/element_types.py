"""Element types of weight files: converts their bytes to numbers, and numbers to the bytes of MLX arrays.

NumPy has no bfloat16. So the 16 bits of a bf16 number are passed as uint16, and reading makes it float32.
Quantised types are those of GGUF. The `gguf` package dequantises them, and knows types that are newer than this table;
it is imported when it is needed: that takes as long as reading the header of a file.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import WeightsError

# ruff: noqa: PLC0415 (gguf: see above)

Array = npt.NDArray[Any]

_NATIVE: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_GGUF_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    20: ("IQ4_NL", 32, 18),
    23: ("IQ4_XS", 256, 136),
    30: ("BF16", 1, 2),
    39: ("MXFP4", 32, 17),
}
"""The types that most files have, by their numbers: names, elements and bytes of a block. All of them can be read."""
_EIGHT_BITS = {"F8_E4M3": (4, 3), "F8_E5M2": (5, 2)}
"""Bits of the exponent and the fraction of floats of 8 bits."""
FOUR_BITS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""The number of each four bits of F4_E2M1."""
F4_E2M1, F8_E8M0 = "F4_E2M1", "F8_E8M0"
_READABLE = {*_NATIVE, *_EIGHT_BITS, F4_E2M1, F8_E8M0, *(name for name, *_ in _GGUF_TYPES.values())}
_FLOATS = ("F64", "F32", "F16", "BF16")
_SAFETENSORS_SIZES = {"BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "C64": 8}
LARGEST_FINITE = {"f16": 65504.0, "bf16": 3.3895313892515355e38, "f32": 3.4028234663852886e38}
"""The largest finite number of each type that a weight can be converted to."""
STORAGE: dict[str, np.dtype[Any]] = {"f16": np.dtype("<f2"), "bf16": np.dtype("<u2"), "f32": np.dtype("<f4")}
"""The numpy type that carries each of them; bf16 as its bits."""


@dataclass(frozen=True)
class ElementType:
    """How the elements of a tensor are stored in a file: `block_elements` of them take `block_bytes` bytes."""

    name: str
    block_elements: int
    block_bytes: int

    def size_bytes(self, elements: int) -> int:
        """Bytes of so many elements, which are whole blocks."""
        return elements // self.block_elements * self.block_bytes

    @property
    def is_readable(self) -> bool:
        """Whether `decode` can turn it into numbers."""
        return self.name in _READABLE or _can_dequantise(self.name)

    @property
    def is_float(self) -> bool:
        """Whether its elements are fractions: a floating-point type, or a quantised one."""
        return self.name in _FLOATS or self.name not in _NATIVE


def safetensors_type(name: str) -> ElementType | None:
    """The element type that a safetensors header calls `name`, or None if there is none."""
    size_bytes = _NATIVE[name].itemsize if name in _NATIVE else _SAFETENSORS_SIZES.get(name)
    return None if size_bytes is None else ElementType(name, 1, size_bytes)


def gguf_type(number: int) -> ElementType | None:
    """The element type with this number in GGUF files, or None if there is none."""
    if number in _GGUF_TYPES:
        return ElementType(*_GGUF_TYPES[number])
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        return None
    return ElementType(kind.name, *GGML_QUANT_SIZES[kind])


@cache
def _can_dequantise(name: str) -> bool:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    kind = GGMLQuantizationType.__members__.get(name)
    if kind is None:
        return False
    try:
        _dequantised(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), name)
    except NotImplementedError:
        return False
    return True


def _dequantised(raw: npt.NDArray[np.uint8], name: str) -> Array:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    numbers: Array = dequantize(raw, GGMLQuantizationType[name])
    return numbers


def decode(raw: npt.NDArray[np.uint8], element_type: ElementType) -> Array:
    """Numbers of `raw`: [rows, bytes of a row], uint8.

    Returns:
        [rows, elements of a row], in NumPy's own type if it has one, else float32.

    Raises:
        WeightsError: the type cannot be read.
    """
    if element_type.name in _NATIVE:
        return raw.view(_NATIVE[element_type.name])
    if element_type.name == "BF16":
        return (raw.view("<u2").astype("<u4") << 16).view("<f4")
    if element_type.name in _EIGHT_BITS:
        return _eight_bits(element_type.name)[raw]
    if element_type.name == F4_E2M1:
        return FOUR_BITS[np.stack([raw & 0xF, raw >> 4], axis=-1)].reshape(len(raw), -1)
    if element_type.name == F8_E8M0:
        return np.where(raw == 0xFF, np.float32(np.nan), np.ldexp(np.float32(1), raw.astype(np.int32) - 127))
    if not element_type.is_readable:
        raise WeightsError(f"elements of type {element_type.name} cannot be read; convert to BF16, F16 or F32")
    with np.errstate(all="ignore"):  # corrupt scales are the file's own NaN and infinity
        return _dequantised(raw, element_type.name)


@cache
def _eight_bits(name: str) -> npt.NDArray[np.float32]:
    """The number of each byte. E4M3 has no infinities: only all ones are NaN.

    Source: "FP8 formats for deep learning", arXiv 2209.05433.
    """
    exponent_bits, fraction_bits = _EIGHT_BITS[name]
    codes = np.arange(128)
    exponent, fraction = codes >> fraction_bits, (codes & ((1 << fraction_bits) - 1)) / (1 << fraction_bits)
    bias, largest = (1 << (exponent_bits - 1)) - 1, (1 << exponent_bits) - 1
    numbers = np.where(exponent > 0, 1 + fraction, fraction) * 2.0 ** (np.maximum(exponent, 1) - bias)
    if name == "F8_E5M2":
        numbers[exponent == largest] = np.nan
        numbers[largest << fraction_bits] = np.inf
    else:
        numbers[-1] = np.nan
    return np.concatenate([numbers, -numbers]).astype(np.float32)


def encode(numbers: Array, dtype: str) -> Array:
    """Converts to NumPy's carrier of `dtype` (f32, f16 or bf16), rounding to nearest even.

    Raises:
        WeightsError: a finite number is beyond the largest finite one of `dtype`.
    """
    always_fits = ("f2", "f4") if dtype == "f32" else ("f2",)
    if numbers.dtype.str[1:] not in always_fits:
        _check_range(numbers, dtype)
    if dtype != "bf16":
        return numbers.astype(STORAGE[dtype], copy=False)
    bits = np.ascontiguousarray(numbers, "<f4").view("<u4")
    rounded = ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype("<u2")
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)  # rounding must not carry a NaN into infinity
    return np.where(is_nan, ((bits >> 16) | 0x40).astype("<u2"), rounded)


def _check_range(numbers: Array, dtype: str) -> None:
    limit = LARGEST_FINITE[dtype]
    largest = max(float(np.max(numbers, initial=0)), -float(np.min(numbers, initial=0)))
    if largest <= limit:
        return
    magnitudes = np.abs(numbers)  # slow, so only where there are infinities, NaN or errors
    beyond = magnitudes[(magnitudes > limit) & np.isfinite(magnitudes)]
    if beyond.size:
        raise WeightsError(
            f"the number {float(beyond.max()):.6g} is beyond the largest one of {dtype}, {limit:.6g}; "
            "compile with a wider weight type (bf16 or f32)"
        )

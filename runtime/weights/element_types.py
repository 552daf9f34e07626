"""Element types of weight files: converts their bytes to numbers, and numbers to the bytes of MLX arrays.

NumPy has no bfloat16. So the 16 bits of a bf16 number are passed as uint16, and reading makes it float32.
Quantised types are those of GGUF; the `gguf` package dequantises them.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from mlxr.compiler.errors import WeightsError

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
        return self.name in _NATIVE or self.name == "BF16" or _can_dequantise(self.name)

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
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        return None
    block_elements, block_bytes = GGML_QUANT_SIZES[kind]
    return ElementType(kind.name, block_elements, block_bytes)


@cache
def _can_dequantise(name: str) -> bool:
    kind = GGMLQuantizationType.__members__.get(name)
    if kind is None:
        return False
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


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
    if not element_type.is_readable:
        raise WeightsError(f"elements of type {element_type.name} cannot be read; convert to BF16, F16 or F32")
    with np.errstate(all="ignore"):  # corrupt scales are the file's own NaN and infinity
        numbers: Array = dequantize(raw, GGMLQuantizationType[element_type.name])
    return numbers


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

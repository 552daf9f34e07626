"""Random float weights as a file might have them: at an address that is aligned only to their element size."""

import numpy as np

from mlxr.compiler.formats.weight_format import WeightFormat


def round_bf16(x: np.ndarray) -> np.ndarray:
    """The bits of f32 numbers rounded to the nearest bf16, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widen_bf16(bits: np.ndarray) -> np.ndarray:
    """The numbers of bf16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float_rows(format: WeightFormat, rows: int, columns: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A matrix as bytes [rows, row bytes], and its numbers in f32."""
    dense = np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)
    if format is WeightFormat.F16:
        numbers = dense.astype(np.float16)
        dense = numbers.astype(np.float32)
    elif format is WeightFormat.BF16:
        numbers = round_bf16(dense)
        dense = widen_bf16(numbers)
    else:
        numbers = dense
    size = numbers.nbytes
    memory = np.zeros(size + 128, np.uint8)
    start = -memory.ctypes.data % 64 + numbers.itemsize
    native = memory[start : start + size].reshape(rows, -1)
    native[:] = numbers.view(np.uint8).reshape(rows, -1)
    return native, dense

"""MLX's element types by the names of the graph's, NumPy views of the bytes of MLX arrays, and their evaluation."""

from collections.abc import Callable, Iterable
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

MLX_DTYPES = {
    "f32": mx.float32,
    "f16": mx.float16,
    "bf16": mx.bfloat16,
    "q8": mx.int8,
    "q4": mx.uint8,
    "q4_keys": mx.int8,
    "i32": mx.int32,
    "u32": mx.uint32,
    "u8": mx.uint8,
}
"""MLX's type for each element type of the graph; for q8 and q4, the type of their bytes."""

_UNSIGNED = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}

Bits = npt.NDArray[Any]
"""Elements as unsigned integers of their size, because NumPy has no bfloat16."""


def as_bits(array: mx.array) -> Bits:
    """A view of an array's memory, with the same strides and no copy; waits for the array."""
    return np.array(array.view(_UNSIGNED[array.itemsize]), copy=False)


def start_computing(arrays: Iterable[mx.array]) -> None:
    """Starts to compute lazy arrays, without waiting for them."""
    async_eval: Callable[..., None] = mx.async_eval  # MLX's stub has no types for it
    async_eval(*arrays)

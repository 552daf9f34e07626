"""MLX arrays as the runtime needs to know them: MLX's name of each element type, and NumPy views of their bytes."""

from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

MLX_DTYPES = {
    "f32": mx.float32,
    "f16": mx.float16,
    "bf16": mx.bfloat16,
    "q8": mx.int8,
    "i32": mx.int32,
    "u32": mx.uint32,
    "u8": mx.uint8,
}
"""MLX's type of each of the graph's element types; of q8 that of its bytes."""

_UNSIGNED = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}

Bits = npt.NDArray[Any]
"""Elements as unsigned integers of their size, because NumPy has no bfloat16."""


def as_bits(array: mx.array) -> Bits:
    """A view of an array's memory, once it is computed: same strides, no copy."""
    return np.array(array.view(_UNSIGNED[array.itemsize]), copy=False)

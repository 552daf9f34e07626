"""Arrays as MLX binds them to kernels: with at least 8 elements.

On Metal, MLX binds smaller inputs in the constant address space, which would need another kernel. Kernels see no
shapes, so elements after an array's own change nothing.
"""

import math
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

MIN_ELEMENTS = 8


def bindable_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape, or that of 8 elements if it has fewer."""
    return shape if math.prod(shape) >= MIN_ELEMENTS else (MIN_ELEMENTS,)


def bindable(array: mx.array) -> mx.array:
    """The array, or 8 elements that begin with its own."""
    if array.size >= MIN_ELEMENTS:
        return array
    return mx.concatenate([array.reshape(-1), mx.zeros((MIN_ELEMENTS - array.size,), array.dtype)])


def of_shape(array: mx.array, shape: tuple[int, ...]) -> mx.array:
    """The array in its own shape, without the elements that were added to bind it."""
    return array if array.shape == shape else array.reshape(-1)[: math.prod(shape)].reshape(shape)


def kernel_input(array: npt.NDArray[Any] | mx.array) -> mx.array:
    """Metadata of a batch as MLX binds it: with at least 8 elements, its own first.

    An array on the device stays there: repeating it is a view, which takes no launch.
    """
    if not isinstance(array, mx.array):
        return mx.array(padded(array))
    return array if array.size >= MIN_ELEMENTS else mx.broadcast_to(array, (MIN_ELEMENTS, *array.shape))


def padded(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array itself if it has at least 8 elements, else with rows of zeros added."""
    if array.size >= MIN_ELEMENTS:
        return array
    width = int(np.prod(array.shape[1:]))
    out = np.zeros((-(-MIN_ELEMENTS // width), *array.shape[1:]), dtype=array.dtype)
    out[: len(array)] = array
    return out

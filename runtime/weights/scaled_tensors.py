"""Tensors of small floats, whose numbers are multiplied by scales that the file keeps in tensors of their own.

Published folders have one scale for each 128 x 128 tile of a matrix (DeepSeek V3, MiniMax M2, Qwen3-FP8), for each row,
or for the whole matrix. The size of a tile is no part of the file: it follows from the shapes. Scales of activations,
which other programs round to 8 bits too, are left out: here activations keep their bits.

mlx-lm's modes mxfp8 and nvfp4 are such tensors, too, with a scale for 32 or 16 columns of a row. Their files call
numbers U32 and scales U8. NVFP4 of compressed-tensors and of NVIDIA's modelopt has two numbers in each byte, a scale of
8 bits for 16 columns, and one for the whole matrix, by which scales of the former are divided, and those of the latter
multiplied.

Sources: https://github.com/vllm-project/compressed-tensors (compressors/nvfp4) and NVIDIA's Model Optimizer, for the
names and the meaning of scales.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from mlxr.runtime.weights.element_types import F4_E2M1, ElementType
from mlxr.runtime.weights.stored_tensor import StoredTensor

_MLX_MODES = {256: ("F8_E4M3", "F8_E8M0"), 64: (F4_E2M1, "F8_E4M3")}
"""mxfp8 and nvfp4, by the bits of the numbers that share a scale: types of numbers and scales."""
_SCALED = ("F8_E4M3", "F8_E5M2", F4_E2M1)
_SCALES = ("_scale_inv", "_scale")
"""Endings after the name of the numbers. Both are factors, whatever the first one is called."""
_PAIRS = ElementType(F4_E2M1, 2, 1)
_OF_ACTIVATIONS = (
    "activation_scale",
    "input_scale",
    "input_global_scale",
    "k_scale",
    "v_scale",
    "q_scale",
    "output_scale",
)


def with_scales(tensors: Mapping[str, StoredTensor]) -> Mapping[str, StoredTensor]:
    """The tensors without scales: each is a part of the tensor whose numbers it multiplies."""
    tensors = _with_nvfp4(_with_mlx_modes(tensors))
    scaled = [name for name, tensor in tensors.items() if tensor.type in _SCALED]
    if not scaled:
        return tensors
    joined = dict(tensors)
    left_out = {name for name in tensors if name.rpartition(".")[2] in _OF_ACTIVATIONS}
    for name in scaled:
        for scales in (tensors[name + ending] for ending in _SCALES if name + ending in tensors):
            joined[name] = replace(tensors[name], scales=scales)
            left_out.add(scales.name)
    return {name: tensor for name, tensor in joined.items() if name not in left_out}


def _with_mlx_modes(tensors: Mapping[str, StoredTensor]) -> Mapping[str, StoredTensor]:
    """The tensors, with those of mxfp8 and nvfp4 under the types and names of other files."""
    named: dict[str, StoredTensor] | None = None
    for name, scales in tensors.items():
        numbers = tensors.get(name.removesuffix(".scales") + ".weight")
        if scales.type != "U8" or numbers is None or numbers.type != "U32" or not scales.num_elements:
            continue
        kinds = _MLX_MODES.get(numbers.size_bytes * 8 // scales.num_elements)
        if kinds is None:
            continue
        kind, scale = (_PAIRS if each == F4_E2M1 else ElementType(each, 1, 1) for each in kinds)
        columns = numbers.shape[-1] * 4 * kind.block_elements // kind.block_bytes
        named = dict(tensors) if named is None else named
        named[numbers.name] = replace(numbers, element_type=kind, shape=(*numbers.shape[:-1], columns))
        del named[name]
        named[f"{numbers.name}_scale"] = replace(scales, name=f"{numbers.name}_scale", element_type=scale)
    return tensors if named is None else named


def _with_nvfp4(tensors: Mapping[str, StoredTensor]) -> Mapping[str, StoredTensor]:
    """The tensors, with numbers of NVFP4 as pairs in bytes, and their scales with what these are multiplied by."""
    named: dict[str, StoredTensor] | None = None
    for name, numbers in tensors.items():
        stem = name.removesuffix("_packed")
        scales = tensors.get(f"{stem}_scale") if stem.endswith(".weight") and numbers.type == "U8" else None
        if scales is None or scales.type != "F8_E4M3" or numbers.num_elements != 8 * scales.num_elements:
            continue
        whole, divisor = (tensors.get(f"{stem}_{ending}") for ending in ("scale_2", "global_scale"))
        if divisor is not None:
            whole = Divisor(**vars(divisor))
        if whole is None:
            continue
        named = dict(tensors) if named is None else named
        named.pop(whole.name)
        shape = *numbers.shape[:-1], 2 * numbers.shape[-1]
        named.pop(name)
        named[stem] = replace(numbers, name=stem, element_type=_PAIRS, shape=shape)
        named[scales.name] = replace(scales, scales=whole)
    return tensors if named is None else named


@dataclass(frozen=True)
class Divisor(StoredTensor):
    """A scale by which numbers are divided."""


def has_tiles(tensor: StoredTensor, scales: StoredTensor, columns: int) -> bool:
    """Whether there are tiles of rows and columns, of which a row has so many, with exactly so many scales."""
    if not scales.element_type.is_float or (scales.type in _SCALED and tensor.type != F4_E2M1):
        return False
    if scales.scales is not None and (scales.scales.num_elements != 1 or not scales.scales.element_type.is_float):
        return False
    if scales.num_elements == 1:
        return True
    if len(tensor.shape) < 2 or len(scales.shape) not in (len(tensor.shape), len(tensor.shape) - 1):
        return False
    matrices, tall, wide = _grid(tensor, scales)
    height, width = tensor.shape[-2:]
    if width != columns:
        return False
    return matrices == prod(tensor.shape[:-2]) and _tile(height, tall) > 0 and _tile(width, wide) > 0


def tile_factors(
    tensor: StoredTensor, scales: npt.NDArray[np.float32], rows: npt.NDArray[np.int64], columns: tuple[int, int]
) -> npt.NDArray[np.float32]:
    """The factors of some rows of a tensor.

    Args:
        tensor: 8-bit numbers and scales that `has_tiles` accepts.
        scales: its scales as numbers, of any shape.
        rows: numbers of rows, counted over all outer dimensions.
        columns: the first column, and that after the last.

    Returns:
        [rows, columns], or [1, 1] where the whole tensor has one scale.
    """
    assert tensor.scales is not None, "its scales are given"
    if scales.size == 1:
        return scales.reshape(1, 1)
    grid = _grid(tensor, tensor.scales)
    height, width = tensor.shape[-2:]
    tall, wide = _tile(height, grid[1]), _tile(width, grid[2])
    places = np.arange(*columns) // wide
    found: npt.NDArray[np.float32] = scales.reshape(grid)[rows // height, rows % height // tall][:, places]
    return found


def _grid(tensor: StoredTensor, scales: StoredTensor) -> tuple[int, int, int]:
    """Scales by matrix, tile of rows and tile of columns; without the last dimension, there is one for each row."""
    shape = scales.shape if len(scales.shape) == len(tensor.shape) else (*scales.shape, 1)
    return prod(shape[:-2]), shape[-2], shape[-1]


def _tile(size: int, count: int) -> int:
    """Elements of a tile, of which `count` cover `size` elements: a power of two, or all; 0 if there is none."""
    if count == 1:
        return size
    tile = 1
    while tile < size and -(-size // tile) > count:
        tile *= 2
    return tile if -(-size // tile) == count else 0

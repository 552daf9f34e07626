"""Finds out whether two tensors of a weight file are the same matrix."""

import numpy as np

from mlxr.compiler.artifact import plane_names
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.weight_file import WeightFile

_SLAB_BYTES = 1 << 24


def same_numbers(file: WeightFile, first: str, second: str) -> bool:
    """Compares two matrices byte by byte, with their scales and biases, up to the first difference.

    Raises:
        WeightsError: the file cannot be mapped.
    """
    planes = zip(plane_names(first), plane_names(second), strict=True)
    return all(_same(file, *names) for names in planes if any(name in file.tensors for name in names))


def _same(file: WeightFile, first: str, second: str) -> bool:
    tensors = file.tensors.get(first), file.tensors.get(second)
    shapes = [(tensor.shape, tensor.type) for tensor in tensors if tensor is not None]
    if len(shapes) < 2 or shapes[0] != shapes[1]:
        return False
    mapped = MappedWeights(file)
    ours, theirs = (mapped.rows(file.tensors[name]).reshape(-1) for name in (first, second))
    starts = range(0, ours.size, _SLAB_BYTES)
    return all(np.array_equal(ours[at : at + _SLAB_BYTES], theirs[at : at + _SLAB_BYTES]) for at in starts)

"""Whether two tensors of a weight file are one matrix written twice."""

import numpy as np

from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.weight_file import WeightFile

_ENDINGS = ("weight", "scales", "biases")
_SLAB_BYTES = 1 << 24


def same_numbers(file: WeightFile, first: str, second: str) -> bool:
    """Compares two matrices byte by byte, up to the first difference; quantised ones with their scales and biases.

    Raises:
        WeightsError: the file cannot be mapped.
    """
    stems = [name.removesuffix("weight") for name in (first, second)]
    endings = [ending for ending in _ENDINGS if any(stem + ending in file.tensors for stem in stems)]
    return all(_same(file, *(stem + ending for stem in stems)) for ending in endings)


def _same(file: WeightFile, first: str, second: str) -> bool:
    one, other = file.tensors.get(first), file.tensors.get(second)
    if one is None or other is None or (one.shape, one.type) != (other.shape, other.type):
        return False
    mapped = MappedWeights(file)
    ours, theirs = (mapped.rows(name).reshape(-1) for name in (first, second))
    starts = range(0, ours.size, _SLAB_BYTES)
    return all(np.array_equal(ours[at : at + _SLAB_BYTES], theirs[at : at + _SLAB_BYTES]) for at in starts)

"""Load the weights of an artifact: read each tensor, convert it and write it where the kernels expect it.

Invariants: everything that can be told from the headers is checked before the first array is made. Each packed array
is allocated once and filled in place through a numpy view, slab by slab, so that the peak of memory is the arrays
themselves plus one slab.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import TensorSource, WeightPlan
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.check_tensors import check_tensors, tensor_name
from mlxr.runtime.weights.element_types import Array, encode
from mlxr.runtime.weights.open_weights import open_weights
from mlxr.runtime.weights.unpermute_rope import unpermute_rope
from mlxr.runtime.weights.weight_file import WeightFile, quoted

Progress = Callable[[int, int], None]
"""Called with the bytes loaded so far and the bytes in all."""

_CARRIERS = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.uint16}


def load_weights(
    plan_weights: Sequence[WeightPlan],
    ignored_tensors: Sequence[str],
    weights: str | Path | WeightFile,
    progress: Progress | None = None,
) -> dict[str, mx.array]:
    """Load weights as the plan has them.

    Args:
        plan_weights: the weights to make; a weight is its parts one after the other along axis 0.
        ignored_tensors: regular expressions; a tensor whose whole name matches one may be in the file unused.
        weights: a .safetensors or .gguf file, a safetensors index, or a folder; or one of these, opened.
        progress: called after each piece.

    Returns:
        One evaluated, row-contiguous array per weight, by the weight's name.

    Raises:
        WeightsError: the file is corrupt or of a kind that is not read; a tensor is missing, unexpected, or of the
            wrong shape or type; a number does not fit into the weight's type.
    """
    file = weights if isinstance(weights, WeightFile) else open_weights(weights)
    check_tensors(file, plan_weights, [re.compile(pattern) for pattern in ignored_tensors])
    total_bytes = sum(prod(weight.shape) * weight.dtype.size_bytes for weight in plan_weights)
    done_bytes = 0
    loaded: dict[str, mx.array] = {}
    for weight in plan_weights:
        rows = sum(part.shape[0] for part in weight.parts)
        assert weight.shape[0] == rows, f"weight {weight.name} has {weight.shape[0]} rows, its parts {rows}"
        packed = mx.zeros(weight.shape, _CARRIERS[weight.dtype])
        mx.eval(packed)
        view = np.array(packed, copy=False)  # shares the array's memory; nothing else reads it before it is full
        row = 0
        for part in weight.parts:
            for count in _fill(view[row : row + part.shape[0]], part, weight.dtype, file):
                done_bytes += count
                if progress is not None:
                    progress(done_bytes, total_bytes)
            row += part.shape[0]
        del view
        if weight.dtype == "bf16":
            packed = packed.view(mx.bfloat16)
            mx.eval(packed)
        loaded[weight.name] = packed
    return loaded


def _fill(target: Array, part: TensorSource, dtype: str, file: WeightFile) -> Iterator[int]:
    """Read `part` into `target`, yielding the bytes written by each slab."""
    name = tensor_name(part, file)
    unpermute = file.format == "gguf" and part.gguf_transform == "unpermute_rope"
    if unpermute:
        assert part.heads and part.shape[0] % part.heads == 0, f"{part.name}: {part.shape[0]} rows, {part.heads} heads"
        head_dim = part.shape[0] // part.heads
    for start, numbers in file.slabs(name, row_multiple=head_dim if unpermute else 1):
        piece = unpermute_rope(numbers, len(numbers) // head_dim) if unpermute else numbers
        try:
            stored = encode(piece, dtype)
        except WeightsError as error:
            raise WeightsError(f"{file.path}: tensor {quoted(name)} ({part.name}): {error}") from error
        target[start : start + len(stored)] = stored
        yield stored.nbytes

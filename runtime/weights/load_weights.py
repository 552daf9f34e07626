"""Load the weights of an artifact: as numbers, for hosts that compute with arrays, or as kernels read them.

Invariants: everything that can be told from the headers is checked before the first array is made. Each packed array
is allocated once and filled in place through a numpy view, slab by slab, so that the peak of memory is the arrays
themselves plus one slab. Quantised weights that kernels read keep the bytes of the file.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import DType, TensorSource, WeightPlan, part_places
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.check_tensors import check_tensors
from mlxr.runtime.weights.element_types import Array, encode
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.open_weights import open_weights
from mlxr.runtime.weights.tensor_rows import open_tensor
from mlxr.runtime.weights.weight_file import SLAB_ELEMENTS, WeightFile

Progress = Callable[[int, int], None]
"""Called with the bytes loaded so far and the bytes in all."""

_CARRIERS = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.uint16, "u8": mx.uint8}


def load_weights(
    plan_weights: Sequence[WeightPlan],
    ignored_tensors: Sequence[str],
    weights: str | Path | WeightFile,
    progress: Progress | None = None,
) -> dict[str, mx.array]:
    """Load weights as numbers, of the types and shapes that the graph has them in.

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
    jobs = [(weight, weight.dtype) for weight in plan_weights]
    return _load(jobs, ignored_tensors, weights, progress)


def load_buffers(
    plan_weights: Sequence[WeightPlan],
    ignored_tensors: Sequence[str],
    weights: str | Path | WeightFile,
    progress: Progress | None = None,
) -> dict[str, mx.array]:
    """Load weights as the kernels of the metal target read them: see `WeightPlan.layout`.

    Args:
        plan_weights: the weights to make.
        ignored_tensors: as of `load_weights`.
        weights: likewise.
        progress: likewise.

    Returns:
        One evaluated array per weight: as `load_weights` makes it where all its parts have one float format, else
        [bytes] u8.

    Raises:
        WeightsError: as `load_weights`; or a quantised part has another format in the file.
    """
    jobs = [(weight, weight.layout.dtype) for weight in plan_weights]
    return _load(jobs, ignored_tensors, weights, progress)


def _load(
    jobs: Sequence[tuple[WeightPlan, DType]],
    ignored_tensors: Sequence[str],
    weights: str | Path | WeightFile,
    progress: Progress | None,
) -> dict[str, mx.array]:
    file = weights if isinstance(weights, WeightFile) else open_weights(weights)
    plan_weights = [weight for weight, _ in jobs]
    check_tensors(file, plan_weights, [re.compile(pattern) for pattern in ignored_tensors])
    total_bytes = sum(weight.size_bytes if t == "u8" else prod(weight.shape) * t.size_bytes for weight, t in jobs)
    done_bytes = 0
    mapped = MappedWeights(file)
    loaded: dict[str, mx.array] = {}
    for weight, dtype in jobs:
        rows = sum(part.shape[0] for part in weight.parts)
        assert weight.shape[0] == rows, f"weight {weight.name} has {weight.shape[0]} rows, its parts {rows}"
        packed = mx.zeros((weight.size_bytes,) if dtype == "u8" else weight.shape, _CARRIERS[dtype])
        mx.eval(packed)
        view = np.array(packed, copy=False)  # shares the array's memory; nothing else reads it before it is full
        for count in _fill_bytes(view, weight, mapped) if dtype == "u8" else _fill_numbers(view, weight, dtype, mapped):
            done_bytes += count
            if progress is not None:
                progress(done_bytes, total_bytes)
        del view
        if dtype == "bf16":
            packed = packed.view(mx.bfloat16)
            mx.eval(packed)
        loaded[weight.name] = packed
    return loaded


def _fill_numbers(view: Array, weight: WeightPlan, dtype: str, mapped: MappedWeights) -> Iterator[int]:
    """Read a weight's parts, yielding the bytes written by each slab."""
    row = 0
    for part in weight.parts:
        target = view[row : row + part.shape[0]]
        for start, stop, stored in _encoded(part, dtype, mapped):
            target[start:stop] = stored.reshape(target[start:stop].shape)
            yield stored.nbytes
        row += part.shape[0]


def _fill_bytes(view: Array, weight: WeightPlan, mapped: MappedWeights) -> Iterator[int]:
    """Copy a weight's planes to where its layout has them, yielding the bytes written by each slab."""
    columns = weight.shape[1]
    places = part_places([(part.format, part.shape[0]) for part in weight.parts], columns)
    for part, offsets in zip(weight.parts, places, strict=True):
        if not part.format.is_quantised:
            for start, _, stored in _encoded(part, str(part.format), mapped):
                first = offsets[0] + start * part.format.row_bytes(columns)
                view[first : first + stored.nbytes] = stored.reshape(-1).view(np.uint8)
                yield stored.nbytes
            continue
        tensor = open_tensor(mapped, part)
        if tensor.format != part.format:
            raise WeightsError(
                f"{tensor.where} is {tensor.format}, the artifact reads {part.format}: quantised weights are read as "
                "they are. Compile for the file's own formats: mlxr import FILE"
            )
        step = max(1, SLAB_ELEMENTS // columns)
        for start in range(0, tensor.num_rows, step):
            stop = min(start + step, tensor.num_rows)
            for plane, offset in enumerate(offsets):
                rows = tensor.plane_rows(plane, start, stop)
                first = offset + start * rows.shape[1]
                view[first : first + rows.nbytes] = rows.reshape(-1)
                yield rows.nbytes
            tensor.forget(start, stop)


def _encoded(part: TensorSource, dtype: str, mapped: MappedWeights) -> Iterator[tuple[int, int, Array]]:
    """Slabs of a part's rows in a float type: (first row, last + 1, [rows, ...] in the type's carrier)."""
    tensor = open_tensor(mapped, part)
    step = max(1, SLAB_ELEMENTS // max(1, tensor.columns))
    for start in range(0, tensor.num_rows, step):
        stop = min(start + step, tensor.num_rows)
        try:
            stored = encode(tensor.numbers(start, stop), dtype)
        except WeightsError as error:
            raise WeightsError(f"{tensor.where}: {error}") from error
        yield start, stop, np.ascontiguousarray(stored)
        tensor.forget(start, stop)

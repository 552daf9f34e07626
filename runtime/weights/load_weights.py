"""Loads the weights of an artifact: as numbers, for hosts that compute with arrays, or as kernels read them.

Invariants: all checks that need only the headers come before the first array is made. Each packed array is allocated
once, and several threads fill it, slab by slab. So the most memory used is that of the arrays plus one slab for each
thread (see also `MakeArray`). Quantised weights that kernels read, and numbers that already have the right type, keep
the bytes of the file.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import prod
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import DType, WeightPlan, part_places
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.machine.threads import usable_cpus
from mlxr.runtime.weights.check_tensors import check_tensors
from mlxr.runtime.weights.element_types import Array
from mlxr.runtime.weights.fill_tasks import Task, number_bytes, run_tasks, tasks_of
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.open_tensor import open_tensor
from mlxr.runtime.weights.open_weights import open_weights
from mlxr.runtime.weights.tensor_rows import TensorRows
from mlxr.runtime.weights.weight_file import SLAB_ELEMENTS, WeightFile

Progress = Callable[[int, int], None]
"""Called with the bytes loaded so far and the bytes in all."""

Put = Callable[[int, Array], None]
"""Writes contiguous numbers to an array, from a byte on. Several threads may, to places that do not overlap."""
Fill = Callable[[Put], None]
"""Writes a whole array, in pieces; when it returns, none is being written."""
MakeArray = Callable[[tuple[int, ...], mx.Dtype, Fill], mx.array]
"""Makes an evaluated array of a shape and type, and has it filled once. What the filling raises, it raises."""

_MOST_THREADS = 16
"""More would wait for memory, not for each other."""
_CARRIERS = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.uint16, "u8": mx.uint8}


def in_place(shape: tuple[int, ...], dtype: mx.Dtype, fill: Fill) -> mx.array:
    """See `MakeArray`: an MLX array that the CPU fills in place."""
    array = mx.zeros(shape, dtype)
    mx.eval(array)
    fill(put_into(np.array(array, copy=False)))  # shares the array's memory; nothing else reads it before it is full
    return array


def put_into(view: Array) -> Put:
    """Writes to the memory of a contiguous view."""
    content = view.reshape(-1).view(np.uint8)

    def put(at: int, numbers: Array) -> None:
        content[at : at + numbers.nbytes] = numbers.reshape(-1).view(np.uint8)

    return put


def load_weights(
    plan_weights: Sequence[WeightPlan],
    ignored_tensors: Sequence[str],
    weights: str | Path | WeightFile,
    progress: Progress | None = None,
    make: MakeArray = in_place,
    all_weights: Sequence[WeightPlan] = (),
) -> dict[str, mx.array]:
    """Loads weights as numbers, in the types and shapes of the graph.

    Args:
        plan_weights: the weights to make; the parts of a weight are joined along axis 0.
        ignored_tensors: regular expressions; tensors whose whole names match one may be unused.
        weights: a .safetensors or .gguf file, a safetensors index, or a folder; or one of these that has been opened.
        progress: called after each piece, in the thread in which `make` fills arrays; by default, this thread.
        make: makes each array; bf16 as its bits in u16.
        all_weights: of a rank's part of a model, the model's weights, with which the file is compared; see
            `check_tensors`.

    Returns:
        One evaluated, row-contiguous array per weight, by the weight's name.

    Raises:
        WeightsError: the file is corrupt or of an unknown kind; a tensor is missing, unexpected, or of the
            wrong shape or type; a number does not fit into the weight's type.
    """
    jobs = [(weight, weight.dtype) for weight in plan_weights]
    return _load(jobs, ignored_tensors, weights, progress, make, all_weights)


def load_buffers(
    plan_weights: Sequence[WeightPlan],
    ignored_tensors: Sequence[str],
    weights: str | Path | WeightFile,
    progress: Progress | None = None,
    make: MakeArray = in_place,
    all_weights: Sequence[WeightPlan] = (),
) -> dict[str, mx.array]:
    """Loads weights as the kernels of target metal read them; see `WeightPlan.layout`.

    Args:
        plan_weights: the weights to make.
        ignored_tensors: as in `load_weights`.
        weights: likewise.
        progress: likewise.
        make: likewise.
        all_weights: likewise.

    Returns:
        One evaluated array per weight: as from `load_weights` if all its parts have one float format, else
        [bytes] u8.

    Raises:
        WeightsError: as `load_weights`; or a quantised part has another format in the file.
    """
    jobs = [(weight, weight.layout.dtype) for weight in plan_weights]
    return _load(jobs, ignored_tensors, weights, progress, make, all_weights)


def _load(
    jobs: Sequence[tuple[WeightPlan, DType]],
    ignored_tensors: Sequence[str],
    weights: str | Path | WeightFile,
    progress: Progress | None,
    make: MakeArray,
    all_weights: Sequence[WeightPlan],
) -> dict[str, mx.array]:
    file = weights if isinstance(weights, WeightFile) else open_weights(weights)
    plan_weights = [weight for weight, _ in jobs]
    check_tensors(file, plan_weights, [re.compile(pattern) for pattern in ignored_tensors], all_weights)
    sizes = [weight.size_bytes if t == "u8" else prod(weight.shape) * t.size_bytes for weight, t in jobs]
    mapped, counter, end = MappedWeights(file), _ByteCounter(progress, sum(sizes)), 0
    loaded: dict[str, mx.array] = {}
    with ThreadPoolExecutor(min(usable_cpus(), _MOST_THREADS), "load weights") as pool:
        for (weight, dtype), size in zip(jobs, sizes, strict=True):
            loaded[weight.name] = _load_one(weight, dtype, mapped, pool, counter.add, make)
            end += size
            counter.reach(end)  # a buffer may have gaps between its planes
    return loaded


class _ByteCounter:
    """Counts the bytes that are loaded, and reports them."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._done, self._total = progress, 0, total

    def add(self, count: int) -> None:
        """Adds so many bytes."""
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)

    def reach(self, done: int) -> None:
        """Sets the number of bytes so far; reports it if it is larger than before."""
        if done != self._done:
            self.add(done - self._done)


def _load_one(
    weight: WeightPlan,
    dtype: DType,
    mapped: MappedWeights,
    pool: ThreadPoolExecutor,
    tell: Callable[[int], None],
    make: MakeArray,
) -> mx.array:
    if weight.is_of_adapters:
        # The CPU writes it while the model runs. Of a GPU with memory of its own, MLX leaves this where both reach it.
        return in_place(weight.shape, _CARRIERS[dtype], lambda put: None)
    rows = sum(part.shape[0] for part in weight.parts)
    assert weight.shape[0] == rows, f"weight {weight.name} has {weight.shape[0]} rows, its parts {rows}"
    tensors = [open_tensor(mapped, part) for part in weight.parts]
    if is_bytes := dtype == "u8":
        _check_formats(weight, tensors)

    def fill(put: Put) -> None:
        tasks = _byte_tasks(put, weight, tensors) if is_bytes else _number_tasks(put, dtype, tensors)
        run_tasks(pool, list(tasks), tell)

    packed = make((weight.size_bytes,) if is_bytes else weight.shape, _CARRIERS[dtype], fill)
    if dtype == "bf16":
        packed = packed.view(mx.bfloat16)
        mx.eval(packed)
    return packed


def _check_formats(weight: WeightPlan, tensors: Sequence[TensorRows]) -> None:
    for part, tensor in zip(weight.parts, tensors, strict=True):
        if part.format.is_quantised and tensor.format != part.format:
            raise WeightsError(
                f"{tensor.where} is {tensor.format}, the artifact reads {part.format}: quantised weights are read as "
                "they are. Compile for the file's own formats: mlxr import FILE"
            )


def _number_tasks(put: Put, dtype: DType, tensors: Sequence[TensorRows]) -> Iterator[Task]:
    """Tasks that write the parts of a weight, joined, in a type."""
    at = 0
    for tensor in tensors:
        yield from _tasks_at(put, at, tensor, dtype)
        at += tensor.num_rows * tensor.columns * dtype.size_bytes


def _tasks_at(put: Put, at: int, tensor: TensorRows, dtype: DType) -> Iterator[Task]:
    """Tasks that write the numbers of a part, in a type, from a byte on; see `number_tasks`."""
    row_bytes = tensor.columns * dtype.size_bytes

    def write(first: int, last: int) -> int:
        numbers = number_bytes(tensor, str(dtype), first, last)
        put(at + first * row_bytes, numbers)
        tensor.forget(first, last)
        return numbers.nbytes

    is_copied = tensor.format == dtype and not tensor.is_changed
    most = _rows_per_copy(tensor) if is_copied else _rows_per_task(tensor)
    return tasks_of(write, tensor.num_rows, tensor.num_rows if tensor.columns == 1 else most)


def _byte_tasks(put: Put, weight: WeightPlan, tensors: Sequence[TensorRows]) -> Iterator[Task]:
    """Tasks that copy the planes of a weight to their places in its layout."""
    columns = weight.shape[1]
    places = part_places([(part.format, part.shape[0]) for part in weight.parts], columns)
    for part, tensor, offsets in zip(weight.parts, tensors, places, strict=True):
        if part.format.is_quantised:
            copy = partial(_copy_planes, tensor, put, offsets)
            yield from tasks_of(copy, tensor.num_rows, _rows_per_copy(tensor))
        else:
            yield from _tasks_at(put, offsets[0], tensor, DType(str(part.format)))


def _copy_planes(tensor: TensorRows, put: Put, offsets: Sequence[int], first: int, last: int) -> int:
    """Copies rows [first, last) of each plane, which begins at its offset, and returns their bytes."""
    count = 0
    for plane, offset in enumerate(offsets):
        rows = tensor.plane_rows(plane, first, last)
        put(offset + first * rows.shape[1], rows)
        count += rows.nbytes
    tensor.forget(first, last)
    return count


def _rows_per_copy(tensor: TensorRows) -> int:
    """Larger pieces take less of Python's time, as long as there is one for each thread."""
    for_each = -(-tensor.num_rows // _MOST_THREADS)
    return max(1, min(4 * SLAB_ELEMENTS // max(1, tensor.columns), for_each))


def _rows_per_task(tensor: TensorRows) -> int:
    return max(1, SLAB_ELEMENTS // max(1, tensor.columns))

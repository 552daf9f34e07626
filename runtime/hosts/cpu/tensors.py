"""Puts every weight where the program expects it: mapped, converted, or packed into panels.

A matrix in a float format is used where it lies, if its type is the program's and its rows are in order; else it is
converted into memory of our own. A quantised one must have the program's very blocks, which are rearranged by the
program's own `mlxr_pack`. Vectors become f32. Memory is reserved once; several threads fill it, in pieces, and pages of
the file that were read for that are given back.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import CpuProgram, CpuTensor, TensorSource
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.hosts.cpu.library import Library
from mlxr.runtime.hosts.cpu.memory import aligned, reserve
from mlxr.runtime.weights.check_tensors import tensor_name
from mlxr.runtime.weights.element_types import STORAGE, ElementType, decode, encode, gguf_type_named
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.unpermute_rope import unpermute_rope
from mlxr.runtime.weights.weight_file import WeightFile, quoted

Bytes = npt.NDArray[np.uint8]
PANEL_ROWS = 16
_PIECE_BYTES = 4 << 20
"""Of a tensor at once: much against the cost of a task, little against memory."""
_MAX_LISTED = 8


@dataclass(frozen=True)
class NativeTensor:
    """A tensor as a file or a test has it.

    Attributes:
        rows: [rows, bytes of a row]; of a vector, an element is a row.
        type: how its elements lie there.
        heads: of how many heads the rows are, if each head's rotary pairs lie side by side as in GGUF; else None.
        where: what to call it in messages.
        forget: says that some of its rows are not needed any more.
    """

    rows: Bytes
    type: ElementType
    heads: int | None
    where: str
    forget: Callable[[int, int], None] = lambda first, last: None


class TensorReader(Protocol):
    """Finds the tensors that a program's weights are made of."""

    def __call__(self, part: TensorSource, tensor: CpuTensor) -> NativeTensor:
        """The tensor of a part; `tensor` says what it is for."""


class FileReader:
    """Tensors of a weight file, mapped."""

    def __init__(self, file: WeightFile) -> None:
        self._file, self._mapped = file, MappedWeights(file)

    def __call__(self, part: TensorSource, tensor: CpuTensor) -> NativeTensor:
        """See `TensorReader`."""
        name = tensor_name(part, self._file)
        is_permuted = self._file.format == "gguf" and part.gguf_transform == "unpermute_rope"
        return NativeTensor(
            self._mapped.rows(name),
            self._file.tensors[name].element_type,
            part.heads if is_permuted else None,
            f"{self._file.path}: tensor {quoted(name)} ({part.name})",
            lambda first, last: self._mapped.forget(name, first, last),
        )


class MemoryReader:
    """Tensors by their canonical names, in arrays: f32, f16, bf16 as uint16, or uint8 rows of blocks."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self._arrays = arrays

    def __call__(self, part: TensorSource, tensor: CpuTensor) -> NativeTensor:
        """See `TensorReader`."""
        array = np.ascontiguousarray(self._arrays[part.name])
        names = {"float32": "F32", "float16": "F16", "uint16": "BF16", "uint8": tensor.format.gguf}
        found = gguf_type_named(names[str(array.dtype)])
        is_blocks = array.dtype == np.uint8
        assert is_blocks or array.shape == part.shape, f"{part.name}: {array.shape}, expected {part.shape}"
        return NativeTensor(array.view(np.uint8).reshape(len(array), -1), found, None, part.name)


@dataclass
class Placed:
    """Where the program's tensors begin, and what owns that memory."""

    addresses: list[int]
    owners: list[object] = field(default_factory=list)
    mapped_bytes: int = 0
    own_bytes: int = 0


def place_tensors(
    program: CpuProgram,
    library: Library,
    read: TensorReader,
    threads: int,
    progress: Callable[[int, int], None] | None = None,
) -> Placed:
    """Puts every weight of a program in place.

    Args:
        program: what it wants.
        library: packs panels.
        read: finds tensors.
        threads: how many to fill memory with.
        progress: called with the bytes in place and the bytes in all.

    Raises:
        WeightsError: a quantised tensor has other blocks than the program's, a number does not fit, or a file cannot
            be read.
        HostError: there is not enough memory.
    """
    sources = [[read(part, tensor) for part in tensor.parts] for tensor in program.tensors]
    _check_blocks(program.tensors, sources)
    total = sum(tensor.size_bytes for tensor in program.tensors)
    placed = Placed([0] * len(program.tensors))
    offsets: dict[int, int] = {}
    for index, (tensor, parts) in enumerate(zip(program.tensors, sources, strict=True)):
        if _is_in_place(tensor, parts):
            placed.addresses[index] = parts[0].rows.ctypes.data
            placed.owners.append(parts[0].rows)
            placed.mapped_bytes += tensor.size_bytes
        else:
            offsets[index] = placed.own_bytes
            placed.own_bytes += aligned(tensor.size_bytes)
    memory = reserve(placed.own_bytes)
    placed.owners.append(memory)
    tasks: list[Callable[[], int]] = []
    for index, offset in offsets.items():
        tensor, parts = program.tensors[index], sources[index]
        target = memory[offset : offset + tensor.size_bytes]
        placed.addresses[index] = target.ctypes.data
        if tensor.layout == "packed":
            tasks += _pack_tasks(library, index, tensor, parts[0], target)
        else:
            tasks += _convert_tasks(tensor, parts, target)
    done = placed.mapped_bytes
    for count in _run(tasks, threads):
        done += count
        if progress is not None:
            progress(done, total)
    return placed


def _run(tasks: Sequence[Callable[[], int]], threads: int) -> Iterator[int]:
    """Runs all tasks, and yields what each returns as it ends. The first error ends all."""
    with ThreadPoolExecutor(max_workers=threads) as pool:
        futures = [pool.submit(task) for task in tasks]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _is_in_place(tensor: CpuTensor, parts: Sequence[NativeTensor]) -> bool:
    """Whether the program can read a tensor where it lies."""
    if tensor.layout != "rows":
        return False
    (part,) = parts
    return (
        part.type.name == tensor.format.gguf
        and part.heads is None
        and part.rows.ctypes.data % part.type.block_bytes == 0
    )


def _check_blocks(tensors: Sequence[CpuTensor], sources: Sequence[Sequence[NativeTensor]]) -> None:
    wrong = [
        f"{parts[0].where} is {parts[0].type.name}, the artifact reads {tensor.format.gguf}"
        for tensor, parts in zip(tensors, sources, strict=True)
        if tensor.layout == "packed" and parts[0].type.name != tensor.format.gguf
    ]
    if wrong:
        more = f"; and {len(wrong) - _MAX_LISTED} more" if len(wrong) > _MAX_LISTED else ""
        raise WeightsError(
            f"{'; '.join(wrong[:_MAX_LISTED])}{more}. Quantised weights are read as they are: run the file itself "
            "(mlxr run FILE.gguf), which compiles for its types, or give the spec the file's weight formats"
        )


def _pack_tasks(
    library: Library, index: int, tensor: CpuTensor, part: NativeTensor, target: Bytes
) -> Iterator[Callable[[], int]]:
    rows, row_bytes = part.rows.shape
    panels, per_task = -(-rows // PANEL_ROWS), max(1, _PIECE_BYTES // (PANEL_ROWS * row_bytes))
    head_rows = rows // part.heads if part.heads else 0

    def pack(first: int, last: int) -> int:
        failed = library.pack(index, target.ctypes.data, part.rows.ctypes.data, head_rows, first, last)
        assert not failed, f"the library has no panels for {tensor.name}"
        part.forget(first * PANEL_ROWS, min(rows, last * PANEL_ROWS))
        return int((last - first) * PANEL_ROWS * row_bytes)

    for start in range(0, panels, per_task):
        yield _bound(pack, start, min(panels, start + per_task))


def _convert_tasks(tensor: CpuTensor, parts: Sequence[NativeTensor], target: Bytes) -> Iterator[Callable[[], int]]:
    dtype = str(tensor.format)
    width = prod(tensor.shape[1:])
    numbers = target.view(STORAGE[dtype]).reshape(tensor.shape)
    row = 0
    for part, source in zip(parts, tensor.parts, strict=True):
        rows = source.shape[0]
        yield from _part_tasks(part, numbers[row : row + rows].reshape(rows, width), dtype)
        row += rows


def _part_tasks(part: NativeTensor, target: npt.NDArray[Any], dtype: str) -> Iterator[Callable[[], int]]:
    """Fills a target of [rows, elements of a row] from one tensor."""
    rows = len(target)
    head_rows = rows // part.heads if part.heads else 1
    per_task = max(1, _PIECE_BYTES // max(1, target[:1].nbytes) // head_rows) * head_rows
    if len(part.rows) != rows:  # a quantised vector: its blocks span rows
        per_task = rows

    def convert(first: int, last: int) -> int:
        raw = part.rows[first:last] if len(part.rows) == rows else part.rows
        if part.heads:
            raw = unpermute_rope(raw, (last - first) // head_rows)
        if part.type.name == dtype.upper():
            target[first:last].view(np.uint8)[...] = raw
        else:
            try:
                numbers = encode(decode(np.ascontiguousarray(raw), part.type), dtype)
                target[first:last] = numbers.reshape(last - first, -1)
            except WeightsError as error:
                raise WeightsError(f"{part.where}: {error}") from error
        part.forget(first, last)
        return int(target[first:last].nbytes)

    for start in range(0, rows, per_task):
        yield _bound(convert, start, min(rows, start + per_task))


def _bound(work: Callable[[int, int], int], first: int, last: int) -> Callable[[], int]:
    return lambda: work(first, last)

"""Maps, converts or packs every weight for the program.

A float matrix is read in place if it has the program's type and its rows are in order; else it is converted into memory
that the host allocates. A quantised matrix must have the format that the program reads; the program's own `mlxr_pack`
packs its planes into panels. Vectors become f32. Memory is reserved once, and several threads fill it piece by piece.
Pages of the file are released once they have been converted or packed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_void_p
from dataclasses import dataclass, field
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import PANEL_ROWS, CTensor, TensorSource
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.hosts.cpu.library import Library
from mlxr.runtime.hosts.cpu.memory import aligned, reserve
from mlxr.runtime.weights.element_types import STORAGE
from mlxr.runtime.weights.fill_tasks import Task, number_tasks, run_tasks, tasks_of
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.open_tensor import open_tensor
from mlxr.runtime.weights.tensor_rows import Bytes, TensorRows
from mlxr.runtime.weights.weight_file import WeightFile

_PIECE_BYTES = 4 << 20
"""Bytes of a tensor in one task: large compared with the cost of a task, small compared with memory."""
_MAX_LISTED = 8


NO_TENSORS: Mapping[CTensor, int] = MappingProxyType({})
TensorReader = Callable[[TensorSource], TensorRows]
"""Finds a tensor of the model, in a file or in memory."""


class Lender(Protocol):
    """Somebody who has tensors in memory, as the program reads them."""

    def lent(self) -> Mapping[CTensor, int]:
        """The address of each; they stay there as long as the lender exists."""


def read_from(file: WeightFile) -> TensorReader:
    """A reader of the tensors of a weight file, which it maps."""
    return partial(open_tensor, MappedWeights(file))


@dataclass
class PlacedTensors:
    """The tensors of a program in memory.

    Attributes:
        addresses: of each tensor.
        owners: the objects that own that memory.
        mapped_bytes, own_bytes: see `CpuHost`.
        adapters: by name the numbers of the tensors that adapters have.
    """

    addresses: list[int]
    owners: list[object] = field(default_factory=list)
    mapped_bytes: int = 0
    own_bytes: int = 0
    adapters: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)


def place_tensors(
    tensors: Sequence[CTensor],
    library: Library,
    read: TensorReader,
    threads: int,
    progress: Callable[[int, int], None] | None = None,
    lent: Mapping[CTensor, int] = NO_TENSORS,
) -> PlacedTensors:
    """Brings every weight of a program into memory.

    Args:
        tensors: the tensors that the program reads, in its order.
        library: packs panels.
        read: finds tensors.
        threads: how many threads fill memory.
        progress: called with the bytes done so far and the total.
        lent: addresses of tensors that are in memory already, as the program reads them.

    Raises:
        WeightsError: a quantised tensor has another format than the program reads, a number does not fit, or a file
            cannot be read.
        HostError: there is not enough memory.
    """
    unread = [tensor in lent or is_of_adapters(tensor) for tensor in tensors]
    sources = [[] if no else [read(part) for part in tensor.parts] for no, tensor in zip(unread, tensors, strict=True)]
    _check_blocks(tensors, sources)
    total = sum(tensor.size_bytes for tensor in tensors)
    placed = PlacedTensors([0] * len(tensors))
    offsets: dict[int, int] = {}
    for index, (tensor, parts) in enumerate(zip(tensors, sources, strict=True)):
        rows = None if tensor in lent else _in_place(tensor, parts)
        if tensor in lent:
            placed.addresses[index] = lent[tensor]
            total -= tensor.size_bytes
        elif rows is not None:
            placed.addresses[index] = rows.ctypes.data
            placed.owners.append(rows)
            placed.mapped_bytes += tensor.size_bytes
        else:
            offsets[index] = placed.own_bytes
            placed.own_bytes += aligned(tensor.size_bytes)
    memory = reserve(placed.own_bytes)
    placed.owners.append(memory)
    tasks: list[Task] = []
    for index, offset in offsets.items():
        tensor, parts = tensors[index], sources[index]
        target = memory[offset : offset + tensor.size_bytes]
        placed.addresses[index] = target.ctypes.data
        if is_of_adapters(tensor):
            placed.adapters[tensor.name] = target.view(np.float32)  # zeros, as the memory is reserved
        elif tensor.layout == "packed":
            tasks += _pack_tasks(library, index, tensor, parts[0], target)
        else:
            tasks += _convert_tasks(tensor, parts, target)
    done = placed.mapped_bytes

    def report(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    with ThreadPoolExecutor(max_workers=threads) as pool:
        run_tasks(pool, tasks, report)
    return placed


def bytes_by_place(tensors: Sequence[CTensor], read: TensorReader) -> tuple[int, int]:
    """Bytes of the weights that `place_tensors` would allocate, and of those that it would leave where they are."""
    own = mapped = 0
    for tensor in tensors:
        if not is_of_adapters(tensor) and _in_place(tensor, [read(part) for part in tensor.parts]) is not None:
            mapped += tensor.size_bytes
        else:
            own += aligned(tensor.size_bytes)
    return own, mapped


def is_of_adapters(tensor: CTensor) -> bool:
    """Whether no file of the model has a tensor, since adapters have it."""
    return tensor.parts[0].is_of_adapters


def _in_place(tensor: CTensor, parts: Sequence[TensorRows]) -> Bytes | None:
    """The bytes of a tensor, if the program can read them in place; else None."""
    if tensor.layout != "rows":
        return None
    (part,) = parts
    if not part.is_plain or part.format != tensor.format:
        return None
    rows = part.plane_rows(0, 0, part.num_rows)
    return rows if rows.ctypes.data % tensor.format.block_bytes == 0 else None


def _check_blocks(tensors: Sequence[CTensor], sources: Sequence[Sequence[TensorRows]]) -> None:
    wrong = [
        f"{parts[0].where} is {parts[0].format}, the artifact reads {tensor.format}"
        for tensor, parts in zip(tensors, sources, strict=True)
        if parts and tensor.layout == "packed" and parts[0].format != tensor.format
    ]
    if wrong:
        more = f"; and {len(wrong) - _MAX_LISTED} more" if len(wrong) > _MAX_LISTED else ""
        raise WeightsError(
            f"{'; '.join(wrong[:_MAX_LISTED])}{more}. Quantised weights are read as they are: run the file itself "
            "(mlxr run MODEL), which compiles for its types, or give the spec the file's weight formats"
        )


def _pack_tasks(library: Library, index: int, tensor: CTensor, part: TensorRows, target: Bytes) -> Iterator[Task]:
    rows, row_bytes = tensor.shape[0], tensor.format.row_bytes(tensor.shape[1])
    panels, per_task = -(-rows // PANEL_ROWS), max(1, _PIECE_BYTES // (PANEL_ROWS * row_bytes))

    def pack(first: int, last: int) -> int:
        start, stop = first * PANEL_ROWS, min(rows, last * PANEL_ROWS)
        planes = [part.plane_rows(plane, start, stop) for plane in range(len(tensor.format.planes))]
        pointers = (c_void_p * len(planes))(*(plane.ctypes.data for plane in planes))
        failed = library.pack(index, target.ctypes.data, pointers, first, last)
        assert not failed, f"the library has no panels for {tensor.name}"
        part.forget(start, stop)
        return int((last - first) * PANEL_ROWS * row_bytes)

    return tasks_of(pack, panels, per_task)


def _convert_tasks(tensor: CTensor, parts: Sequence[TensorRows], target: Bytes) -> Iterator[Task]:
    width = prod(tensor.shape[1:])
    numbers = target.view(STORAGE[str(tensor.format)]).reshape(tensor.shape)
    row = 0
    for part, source in zip(parts, tensor.parts, strict=True):
        rows = source.shape[0]
        lines = numbers[row : row + rows].reshape(rows, width)
        yield from number_tasks(part, lines, str(tensor.format), max(1, _PIECE_BYTES // lines[:1].nbytes))
        row += rows

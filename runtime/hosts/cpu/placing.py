"""The places of a program's tensors in memory, and how they get there."""

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import prod
from mmap import mmap
from typing import Any

import numpy.typing as npt

from mlxr.compiler.artifact import CTensor, size
from mlxr.compiler.errors import HostError
from mlxr.runtime.cache_folder import PACKED_FOLDER
from mlxr.runtime.hosts.cpu.library import Library
from mlxr.runtime.hosts.cpu.memory import aligned, reserve
from mlxr.runtime.hosts.cpu.pack_panels import PIECE_BYTES, into_file, into_memory, pack_tasks
from mlxr.runtime.hosts.cpu.panel_file import PanelFile, PanelFileError, Write
from mlxr.runtime.memory.free_memory import MachineMemory
from mlxr.runtime.weights.element_types import STORAGE
from mlxr.runtime.weights.fill_tasks import Task, number_tasks, run_tasks, tasks_of
from mlxr.runtime.weights.tensor_rows import Bytes, TensorRows


@dataclass
class PlacedTensors:
    """The tensors of a program in memory.

    Attributes:
        addresses: of each tensor.
        owners: the objects that own that memory.
        mapped_bytes, own_bytes: see `CpuHost`.
        adapters: by name the numbers of the tensors that adapters have: f16, bf16 as its bits, or bytes.
        panels: the file of the panels as it is mapped; None: they are in memory.
        notes: for people, where panels are kept, or why not.
    """

    addresses: list[int]
    owners: list[object] = field(default_factory=list)
    mapped_bytes: int = 0
    own_bytes: int = 0
    adapters: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    panels: mmap | None = None
    notes: tuple[str, ...] = ()


class Placing:
    """Gives tensors their places, and fills them. It is used once.

    Attributes:
        total: bytes that there are to do, for `progress`.
        placed: the result.
    """

    def __init__(
        self,
        tensors: Sequence[CTensor],
        sources: Sequence[Sequence[TensorRows]],
        library: Library,
        threads: int,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        """Stores what `place_tensors` was given, and the rows of each tensor's parts; none of tensors that are lent."""
        self._tensors, self._sources, self._library, self._threads = tensors, sources, library, threads
        self._progress, self._done = progress, 0
        self._open = set(range(len(tensors)))
        self._copied: dict[int, Bytes] = {}
        self.total = sum(tensor.size_bytes for tensor in tensors)
        self.placed = PlacedTensors([0] * len(tensors))

    def put(self, index: int, address: int, owner: object = None) -> None:
        """A tensor is in memory already."""
        self._open.remove(index)
        self.placed.addresses[index] = address
        if owner is not None:
            self.placed.owners.append(owner)

    def map(self, file: PanelFile, resident: Collection[CTensor]) -> None:
        """Maps panels from their file, which is made if it is not there. Those of `resident` tensors will be copied."""
        opened = file.open()
        if opened is None:
            try:
                opened = file.make(partial(self._write, file))
            except PanelFileError as error:
                self._done = 0
                self._check_memory(file, error)
                self.placed.notes = (f"{error}; they are in memory",)
                return
            kept = (
                f"packed weights are kept in {file.path} ({size(file.size_bytes)}): they are mapped, and load at once"
            )
            self.placed.notes = (f"{kept} from now on; mlxr cache clear {PACKED_FOLDER} removes them",)
        self.placed.panels, content = opened
        for index in self._of(file):
            tensor = self._tensors[index]
            first = file.offsets[tensor]
            if tensor in resident:
                self._copied[index] = content[first : first + tensor.size_bytes]
                continue
            self.put(index, content.ctypes.data + first)
            self.placed.mapped_bytes += tensor.size_bytes
        self.placed.owners.append(content)
        copied = sum(part.nbytes for part in self._copied.values())
        self.total += copied if self.placed.notes else -self.placed.mapped_bytes

    def map_rows(self) -> None:
        """Leaves float matrices in their file where that is possible."""
        for index in sorted(self._open):
            tensor = self._tensors[index]
            rows = None if is_of_adapters(tensor) else in_place(tensor, self._sources[index])
            if rows is not None:
                self.put(index, rows.ctypes.data, rows)
                self.placed.mapped_bytes += rows.nbytes
                self._done += rows.nbytes

    def fill(self) -> None:
        """Converts or packs all others into memory."""
        sizes = {index: aligned(self._tensors[index].size_bytes) for index in sorted(self._open)}
        memory = reserve(sum(sizes.values()))
        self.placed.owners.append(memory)
        self.placed.own_bytes = memory.nbytes
        tasks: list[Task] = []
        for index, aligned_bytes in sizes.items():
            tensor, parts = self._tensors[index], self._sources[index]
            target, memory = memory[: tensor.size_bytes], memory[aligned_bytes:]
            self.placed.addresses[index] = target.ctypes.data
            if is_of_adapters(tensor):
                # Zeros, as the memory is reserved.
                is_bytes = tensor.format.is_quantised
                self.placed.adapters[tensor.name] = target if is_bytes else target.view(STORAGE[str(tensor.format)])
            elif index in self._copied:
                tasks += _copy_tasks(self._copied[index], target)
            elif tensor.layout == "packed":
                tasks += pack_tasks(self._library, index, tensor, parts[0], into_memory(target))
            else:
                tasks += _convert_tasks(tensor, parts, target)
        self._run(tasks)

    def _check_memory(self, file: PanelFile, why: PanelFileError) -> None:
        needed, free = sum(self._tensors[index].size_bytes for index in self._of(file)), MachineMemory().read()
        if needed > free.free_bytes:
            raise HostError(
                f"{why}. Nor do they fit into memory: they take {size(needed)}, and {free.owner} has "
                f"{size(free.free_bytes)} free"
            ) from why

    def _of(self, file: PanelFile) -> list[int]:
        return [index for index in sorted(self._open) if self._tensors[index] in file.offsets]

    def _write(self, file: PanelFile, write: Write) -> None:
        tasks: list[Task] = []
        for index in self._of(file):
            tensor, (part,) = self._tensors[index], self._sources[index]
            tasks += pack_tasks(self._library, index, tensor, part, into_file(write, file.offsets[tensor]))
        self._run(tasks)

    def _run(self, tasks: Sequence[Task]) -> None:
        with ThreadPoolExecutor(max_workers=self._threads) as pool:
            run_tasks(pool, tasks, self._tell)

    def _tell(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self.total)


def is_of_adapters(tensor: CTensor) -> bool:
    """Whether no file of the model has a tensor, since adapters have it."""
    return tensor.parts[0].is_of_adapters


def in_place(tensor: CTensor, parts: Sequence[TensorRows]) -> Bytes | None:
    """The bytes of a tensor, if the program can read them in place; else None."""
    if tensor.layout != "rows":
        return None
    (part,) = parts
    if not part.is_plain or part.format != tensor.format:
        return None
    rows = part.plane_rows(0, 0, part.num_rows)
    return rows if rows.ctypes.data % tensor.format.block_bytes == 0 else None


def _copy_tasks(content: Bytes, target: Bytes) -> Iterator[Task]:
    def copy(first: int, last: int) -> int:
        target[first:last] = content[first:last]
        return last - first

    return tasks_of(copy, len(content), PIECE_BYTES)


def _convert_tasks(tensor: CTensor, parts: Sequence[TensorRows], target: Bytes) -> Iterator[Task]:
    width = prod(tensor.shape[1:])
    numbers = target.view(STORAGE[str(tensor.format)]).reshape(tensor.shape)
    row = 0
    for part, source in zip(parts, tensor.parts, strict=True):
        rows = source.shape[0]
        lines = numbers[row : row + rows].reshape(rows, width)
        yield from number_tasks(part, lines, str(tensor.format), max(1, PIECE_BYTES // lines[:1].nbytes))
        row += rows

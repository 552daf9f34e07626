"""Packs a quantised matrix into panels, in tasks that several threads share: into memory, or into a file."""

from collections.abc import Callable, Iterator
from ctypes import c_void_p
from functools import partial

import numpy as np

from mlxr.compiler.artifact import PANEL_ROWS, CTensor
from mlxr.runtime.hosts.cpu.library import Library
from mlxr.runtime.weights.fill_tasks import Task, tasks_of
from mlxr.runtime.weights.tensor_rows import Bytes, TensorRows

PIECE_BYTES = 4 << 20
"""Bytes of a tensor in one task: large compared with the cost of a task, small compared with memory."""
Put = Callable[[int, int, Callable[[int], None]], None]
"""Takes a place within the tensor, a number of bytes, and a function that writes so many bytes to an address."""


def into_memory(target: Bytes) -> Put:
    """Packs into memory of the tensor's size."""
    return lambda place, count, pack: pack(target.ctypes.data + place)


def into_file(write: Callable[[int, Bytes], None], offset: int) -> Put:
    """Packs into a file, in which the tensor begins at an offset; errors are those of `write`."""

    def put(place: int, count: int, pack: Callable[[int], None]) -> None:
        panels = np.empty(count, np.uint8)
        pack(panels.ctypes.data)
        write(offset + place, panels)

    return put


def pack_tasks(library: Library, index: int, tensor: CTensor, part: TensorRows, put: Put) -> Iterator[Task]:
    """The tasks that pack a tensor.

    Args:
        library: packs panels.
        index: the tensor's number in the program.
        tensor: it.
        part: its rows in a file.
        put: where panels go.
    """
    rows, panel_bytes = tensor.shape[0], PANEL_ROWS * tensor.format.row_bytes(tensor.shape[1])
    panels = -(-rows // PANEL_ROWS)
    each, gap = panels // tensor.matrices, tensor.stride - panels // tensor.matrices * panel_bytes
    if not gap:  # one matrix follows the other
        each = panels

    def task(begin: int, first: int, last: int) -> int:
        first, last = begin + first, begin + last
        start, stop = first * PANEL_ROWS, min(rows, last * PANEL_ROWS)
        planes = [part.plane_rows(plane, start, stop) for plane in range(len(tensor.format.planes))]
        pointers = (c_void_p * len(planes))(*(plane.ctypes.data for plane in planes))

        def pack(address: int) -> None:
            failed = library.pack(index, address - first * panel_bytes, pointers, first, last)
            assert not failed, f"the library has no panels for {tensor.name}"

        put(first * panel_bytes + begin // each * gap, (last - first) * panel_bytes, pack)
        part.forget(start, stop)
        return int((last - first) * panel_bytes)

    for begin in range(0, panels, each):
        yield from tasks_of(partial(task, begin), each, max(1, PIECE_BYTES // panel_bytes))

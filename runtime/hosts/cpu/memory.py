"""Memory of the system: zeros whose pages are taken when they are touched, and logits that are used again."""

import contextlib
import mmap
import sys
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import HostError

_LARGE_PAGE = 2 << 20
ALIGNMENT = 64
_MOST_ARRAYS = 2
"""How many arrays are kept: the caller still has the logits of one step while the next step runs."""
_UNUSED = 2
"""What `sys.getrefcount` returns for an array that only our list refers to."""
_MOST_BYTES = 64 << 20


def reserve(size_bytes: int, what: str = "the weights") -> npt.NDArray[np.uint8]:
    """A block of zeros. Each page is allocated when it is first touched, near the thread that touches it.

    It is not NumPy's allocation, because it must begin at a large page and return to the system as a whole, or page by
    page (`give_back`).

    Args:
        size_bytes: its size, which may be 0.
        what: will be in it, for messages.

    Raises:
        HostError: there is not that much memory.
    """
    options: dict[str, Any] = {}
    if sys.platform != "win32":
        options["flags"] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # the default, a shared mapping, has no large pages
    try:
        block = mmap.mmap(-1, size_bytes + _LARGE_PAGE, **options)
    except (OSError, ValueError, OverflowError) as error:
        raise HostError(
            f"cpu: cannot get {size_bytes >> 20} MiB for {what}: {error}; close other programs, or compile the spec "
            "with smaller weight formats or a smaller cache"
        ) from error
    ask_for_large_pages(block)
    whole = np.frombuffer(block, np.uint8)
    first = -whole.ctypes.data % _LARGE_PAGE
    return whole[first : first + size_bytes]


def ask_for_large_pages(block: mmap.mmap) -> None:
    """Has the system use large pages for memory that is about to be touched, where it can."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # this kernel has no large pages
            block.madvise(mmap.MADV_HUGEPAGE)


def give_back(memory: npt.NDArray[np.uint8], first: int, stop: int) -> None:
    """Gives whole pages of bytes `first` to `stop` of a reserved block back to the system; Linux fills them with zeros.

    What they held is not needed any more. A system that cannot take them back keeps them.
    """
    owner: object = memory
    while isinstance(owner, np.ndarray):
        owner = owner.base
    block = owner.obj if isinstance(owner, memoryview) else owner
    advice = getattr(mmap, "MADV_FREE" if sys.platform == "darwin" else "MADV_DONTNEED", None)
    if advice is None or not isinstance(block, mmap.mmap):
        return
    begin = memory.ctypes.data - np.frombuffer(block, np.uint8).ctypes.data
    first = -(-(begin + first) // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (begin + stop) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < stop:
        with contextlib.suppress(OSError):
            block.madvise(advice, first, stop - first)


def aligned(size_bytes: int) -> int:
    """A size rounded up to the alignment of tensors."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


class LogitsMemory:
    """Arrays of f32 rows of one width, used again once nothing refers to them. Several threads may use it.

    The first touch of each page of new memory is slow.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._arrays: list[npt.NDArray[np.float32]] = []
        self._lock = threading.Lock()

    def take(self, rows: int) -> npt.NDArray[np.float32]:
        """An array [rows, width] that nothing else refers to, not even to a part of it. Its content is undefined."""
        with self._lock:
            for index in range(len(self._arrays)):
                # A view refers to the array whose memory it shows, so views are counted too.
                if sys.getrefcount(self._arrays[index]) == _UNUSED and len(self._arrays[index]) >= rows:
                    return self._arrays[index][:rows]
            array = np.empty((rows, self._width), np.float32)
            if 0 < array.nbytes <= _MOST_BYTES:
                self._arrays = [array, *self._arrays][:_MOST_ARRAYS]
                return array[:]
            return array

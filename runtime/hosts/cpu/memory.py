"""Memory for weights that are not mapped from a file: one block, zeroed, in large pages where the system has them."""

import contextlib
import mmap
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import HostError

_LARGE_PAGE = 2 << 20
ALIGNMENT = 64


def reserve(size_bytes: int) -> npt.NDArray[np.uint8]:
    """A block of zeros. Pages exist when they are first touched, by whom they are touched.

    Not numpy's own: a block to itself begins at a large page, and goes back to the system as a whole.

    Args:
        size_bytes: may be 0.

    Raises:
        HostError: there is not that much memory.
    """
    options: dict[str, Any] = {}
    if sys.platform != "win32":
        options["flags"] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # a shared one, the default, has no large pages
    try:
        block = mmap.mmap(-1, size_bytes + _LARGE_PAGE, **options)
    except (OSError, ValueError, OverflowError) as error:
        raise HostError(
            f"cpu: cannot get {size_bytes >> 20} MiB for the weights: {error}; close other programs, or compile the "
            "spec with smaller weight formats"
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            block.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(block, np.uint8)
    first = -whole.ctypes.data % _LARGE_PAGE
    return whole[first : first + size_bytes]


def aligned(size_bytes: int) -> int:
    """A size rounded up so that what follows is aligned."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT

"""Memory of the machine that the card sees, too, at the same address."""

import ctypes
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cuda.driver import call, in_context

_PORTABLE_AND_MAPPED = 3  # CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP


class PinnedMemory:
    """Zeros, whose pages stay where they are until it is freed: by `free`, or when nobody has it any more.

    Attributes:
        address: for the CPU.
        seen: for the card.
    """

    def __init__(self, size_bytes: int, waits: Sequence[Callable[[], object]] = ()) -> None:
        """Allocates it.

        Args:
            size_bytes: how many bytes.
            waits: for the last launches that use it, when it is freed; they may change until then.

        Raises:
            HostError: the driver refuses.
        """
        own, seen, context = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p()
        with in_context() as ordinal:
            call("cuMemHostAlloc", ctypes.byref(own), ctypes.c_size_t(size_bytes), _PORTABLE_AND_MAPPED)
            assert own.value is not None, "the driver has allocated"
            self.address = own.value
            call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)  # for as long as the memory is there
            self._freeing = weakref.finalize(self, _free, self.address, waits)
            self._freeing.atexit = False  # the process frees it; the CPU's thread may still look at it
            call("cuMemHostGetDevicePointer_v2", ctypes.byref(seen), own, 0)
        self.seen = seen.value
        ctypes.memset(self.address, 0, size_bytes)

    def free(self) -> None:
        """Frees it, once the launches that use it have ended; the CPU must no longer look at it. Again is nothing."""
        self._freeing()


def _free(address: int, waits: Sequence[Callable[[], object]]) -> None:
    failures = (HostError, RuntimeError, ValueError)  # after one, nothing but the end of the process frees it
    with suppress(*failures), in_context() as ordinal:
        for wait in waits:
            wait()
        call("cuMemFreeHost", ctypes.c_void_p(address))
        call("cuDevicePrimaryCtxRelease_v2", ordinal)

"""Memory of the machine that the card sees, too, at the same address."""

import ctypes

from mlxr.runtime.hosts.cuda.driver import call, in_context

_PORTABLE_AND_MAPPED = 3  # CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP


class PinnedMemory:
    """Zeros, whose pages stay where they are. It stays until the process ends: launches may be under way at any time.

    Attributes:
        address: for the CPU, and for the card.
    """

    def __init__(self, size_bytes: int) -> None:
        """Allocates it.

        Args:
            size_bytes: how many bytes.

        Raises:
            HostError: the driver refuses, or the card sees it at another address.
        """
        own, seen, context = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p()
        with in_context() as ordinal:
            call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)  # for as long as the memory is there
            call("cuMemHostAlloc", ctypes.byref(own), ctypes.c_size_t(size_bytes), _PORTABLE_AND_MAPPED)
            call("cuMemHostGetDevicePointer_v2", ctypes.byref(seen), own, 0)
        assert own.value is not None, "the driver has allocated"
        self.address, self.seen = own.value, seen.value
        ctypes.memset(self.address, 0, size_bytes)

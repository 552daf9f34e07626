"""Memory of this rank's card that the cards of the other ranks see, and theirs, over CUDA's handles for processes."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cuda.driver import call, in_context, own_stream

HANDLE_BYTES = 64
_ALIGNMENT = 2 << 20  # the driver shares whole blocks of so many bytes with a process
_ENABLE_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS


class _Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * HANDLE_BYTES),)


class PeerMemory:
    """Memory of this process's card. It stays until it is freed, because another process may use it until then.

    Attributes:
        address: on the GPU.
    """

    def __init__(self, size_bytes: int) -> None:
        """Allocates zeros.

        Args:
            size_bytes: how many bytes.

        Raises:
            HostError: the driver refuses.
        """
        address = ctypes.c_uint64()
        self._size = -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
        with in_context() as ordinal:
            context = ctypes.c_void_p()
            call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)  # for as long as the memory is there
            call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(self._size))
        self.address = address.value
        self.clear()

    def clear(self) -> None:
        """Fills it with zeros."""
        size = ctypes.c_size_t(self._size)
        with _working() as stream:
            call("cuMemsetD8Async", ctypes.c_uint64(self.address), ctypes.c_ubyte(0), size, stream)

    def free(self) -> None:
        """Frees what no other process has opened, and no launch uses any more. A second time is nothing."""
        address, self.address = self.address, 0
        if not address:
            return
        with suppress(HostError), in_context() as ordinal:  # after a launch that failed, nothing but the end frees it
            call("cuMemFree_v2", ctypes.c_uint64(address))
            call("cuDevicePrimaryCtxRelease_v2", ordinal)

    def handle(self) -> bytes:
        """What another process opens it with.

        Raises:
            HostError: the driver shares no memory with other processes here.
        """
        handle = _Handle()
        with in_context():
            call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(self.address))
        return bytes(handle)


def open_memory(handle: bytes) -> int:
    """The address of another process's memory, on this process's GPU.

    Args:
        handle: of that memory.

    Raises:
        HostError: the cards do not see each other's memory, or the driver refuses.
    """
    address = ctypes.c_uint64()
    with in_context():
        call("cuIpcOpenMemHandle_v2", ctypes.byref(address), _Handle.from_buffer_copy(handle), _ENABLE_PEER_ACCESS)
    return address.value


def write_memory(address: int, data: bytes) -> None:
    """Writes bytes to an address on the GPU, and waits.

    Raises:
        HostError: it cannot be written.
    """
    with _working() as stream:
        call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)), stream)


def read_memory(address: int, size_bytes: int) -> bytes:
    """Reads bytes of an address on the GPU.

    Raises:
        HostError: it cannot be read.
    """
    data = ctypes.create_string_buffer(size_bytes)
    with _working() as stream:
        call("cuMemcpyDtoHAsync_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(size_bytes), stream)
    return data.raw


@contextmanager
def _working() -> Iterator[ctypes.c_void_p]:
    with in_context(), own_stream() as stream:
        yield stream

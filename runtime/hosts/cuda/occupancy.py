"""Asks the driver how many blocks of a kernel an NVIDIA GPU runs at once."""

import ctypes
from typing import NamedTuple

from mlxr.runtime.hosts.cuda.driver import MOST_SHARED_BYTES, call, in_context

_MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT


class Residency(NamedTuple):
    """The number of a GPU's multiprocessors, and how many blocks of a kernel each of them runs at once."""

    multiprocessors: int
    blocks: int


def residency(name: str, image: bytes, threads: int, device: int = 0, pool: int = 0) -> Residency:
    """How many blocks of a kernel are on the GPU at once.

    Args:
        name: the kernel's name in the image.
        image: a cubin or a fat binary.
        threads: threads of a block.
        device: the GPU's number.
        pool: shared memory that a launch asks for.

    Raises:
        HostError: the driver cannot be asked, or rejects the image.
    """
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    multiprocessors, blocks = ctypes.c_int(), ctypes.c_int()
    with in_context(device) as ordinal:
        call("cuDeviceGetAttribute", ctypes.byref(multiprocessors), _MULTIPROCESSORS, ordinal)
        call("cuModuleLoadData", ctypes.byref(module), image)
        try:
            call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
            if pool:
                call("cuFuncSetAttribute", function, MOST_SHARED_BYTES, pool)
            call(
                "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                ctypes.byref(blocks),
                function,
                threads,
                ctypes.c_size_t(pool),
            )
        finally:
            call("cuModuleUnload", module)
    return Residency(multiprocessors.value, blocks.value)

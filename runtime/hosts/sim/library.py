"""Calls the C runtime of the sim host through ctypes: the structures of sim_runtime.h and the launch function."""

import ctypes
import functools
import os
import sys
from pathlib import Path

from mlxr.compiler.errors import HostError

MAX_BUFFERS = 31
MAX_THREADS = 1024
THREADGROUP_LIMIT, COPIES_LIMIT = 32768, 226 << 10
"""Bytes of threadgroup memory that a kernel may have; that one may have which copies ahead, as on NVIDIA cards."""
COPIES = "MLXR_COPY_AHEAD"
"""What a text contains that copies ahead."""
_UINT3 = ctypes.c_uint32 * 3


class CLaunch(ctypes.Structure):
    """`SimLaunch`."""

    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p),
        ("num_buffers", ctypes.c_uint64),
        ("groups", _UINT3),
        ("threads", _UINT3),
        ("seed", ctypes.c_uint64),
        ("num_workers", ctypes.c_uint64),
        ("num_sites", ctypes.c_uint64),
        ("threadgroup_limit", ctypes.c_uint64),
    )


class CFault(ctypes.Structure):
    """`SimFault`."""

    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("is_write", ctypes.c_uint32),
        ("object_kind", ctypes.c_uint32),
        ("object", ctypes.c_uint32),
        ("offset", ctypes.c_int64),
        ("object_size", ctypes.c_uint64),
        ("size", ctypes.c_uint32),
        ("thread", ctypes.c_uint32),
        ("other", ctypes.c_uint32),
        ("other_wrote", ctypes.c_uint32),
        ("operation", ctypes.c_uint32),
        ("other_operation", ctypes.c_uint32),
        ("site", ctypes.c_uint32),
        ("other_site", ctypes.c_uint32),
        ("group", _UINT3),
        ("other_group", ctypes.c_uint32),
        ("name", ctypes.c_char * 64),
    )


def num_workers() -> int:
    """Worker threads of a launch: `$MLXR_SIM_THREADS`, else the number of CPUs that this process may use.

    Raises:
        HostError: `$MLXR_SIM_THREADS` is not a number from 1 to 256.
    """
    value = os.environ.get("MLXR_SIM_THREADS")
    return _cpus() if value is None else _parse(value)


@functools.cache
def _cpus() -> int:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, 256)


@functools.cache
def _parse(value: str) -> int:
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= 256:
        raise HostError(f"MLXR_SIM_THREADS={value!r} is not a number from 1 to 256; correct or unset it")
    return int(value)


class Library:
    """The runtime library, loaded once per file."""

    def __init__(self, path: Path) -> None:
        # Kernel libraries call the C library's math functions, but are not linked with it.
        if sys.platform == "linux":
            ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(str(path))
        self.launch = library.sim_launch
        self.launch.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        self.launch.restype = ctypes.c_int


@functools.cache
def load_library(path: Path) -> Library:
    """Loads the runtime library at `path`.

    Raises:
        OSError: it cannot be loaded.
    """
    return Library(path)

"""How much memory is free now, without swapping: of this machine, for this process, on a GPU.

Linux: `MemAvailable`, which counts the cache of files as free, because it can be dropped; but no more than the control
groups (version 1 or 2) and the limit of the address space leave. A group's cache of files counts as free too. macOS:
pages that are free, purgeable or of files. Other systems: all of the machine's memory.
"""

import ctypes
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from mlxr.runtime.machine.control_groups import group_folders, text_of

_ROOT = Path("/")
_UNLIMITED = 1 << 60
"""Control groups of version 1 without a limit have a number beyond this one."""


@dataclass(frozen=True)
class FreeMemory:
    """Memory that is free now.

    Attributes:
        free_bytes: bytes that can be allocated without swapping.
        total_bytes: bytes in all.
        owner: whose memory it is, for messages: `this machine`, `this GPU`.
    """

    free_bytes: int
    total_bytes: int
    owner: str = "this machine"


class MachineMemory:
    """Reads how much of the machine's memory this process can have. It finds out once where to read."""

    def __init__(self, root: Path = _ROOT) -> None:
        """Finds what limits this process.

        Args:
            root: the folder of `proc` and `sys`.
        """
        self._readers: list[Callable[[], FreeMemory]] = list(_readers(root))

    def read(self) -> FreeMemory:
        """What is free now, where the least is."""
        readings = []
        for read in self._readers:
            with suppress(OSError, ValueError, KeyError):  # a control group may have gone
                readings.append(read())
        return min(readings, key=lambda memory: memory.free_bytes, default=_whole_machine())


def gpu_memory() -> FreeMemory | None:
    """What is free on an NVIDIA GPU, with what MLX keeps for later arrays; None where MLX has none or cannot tell."""
    if not mx.cuda.is_available():
        return None
    info = mx.device_info(mx.Device(mx.gpu))
    total = int(info.get("total_memory", 0))
    free = int(info.get("free_memory", total - mx.get_active_memory())) + mx.get_cache_memory()
    return FreeMemory(min(free, total), total, "this GPU") if total else None


def metal_memory(machine: FreeMemory) -> FreeMemory:
    """What is free on the GPU of a Mac, which shares the machine's memory but should not use all of it."""
    most = int(mx.device_info().get("max_recommended_working_set_size", machine.total_bytes))
    left = max(0, most - mx.get_active_memory())
    return machine if machine.free_bytes <= left else FreeMemory(left, most, "this Mac's GPU")


def _readers(root: Path) -> Iterator[Callable[[], FreeMemory]]:
    if sys.platform == "darwin":
        yield _MacMemory().read
    if (root / "proc/meminfo").is_file():
        yield lambda: _meminfo(root / "proc/meminfo")
    for folder in group_folders(root, "cgroup2", ""):
        for limit in ("memory.max", "memory.high"):
            if _limit(folder / limit) is not None:
                yield _group(folder, limit, "memory.current", "")
    for folder in group_folders(root, "cgroup", "memory"):
        if _limit(folder / "memory.limit_in_bytes") is not None:
            yield _group(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY and (root / "proc/self/statm").is_file():
        yield lambda: _address_space(root / "proc/self/statm")


def _whole_machine() -> FreeMemory:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return FreeMemory(total, total)


def _meminfo(path: Path) -> FreeMemory:
    numbers = _numbers(path)
    available = numbers.get(b"MemAvailable:")
    if available is None:  # Linux before 3.14, and some sandboxes
        available = numbers[b"MemFree:"] + numbers.get(b"Cached:", 0)
    return FreeMemory(available << 10, numbers[b"MemTotal:"] << 10)


def _limit(path: Path) -> int | None:
    """A limit in bytes; None if there is none."""
    text = text_of(path) or ""
    return int(text) if text.isdecimal() and int(text) < _UNLIMITED else None


def _group(folder: Path, limit: str, usage: str, prefix: str) -> Callable[[], FreeMemory]:
    files = (f"{prefix}active_file".encode(), f"{prefix}inactive_file".encode())

    def read() -> FreeMemory:
        most = _limit(folder / limit)
        if most is None:
            return _whole_machine()
        numbers = _numbers(folder / "memory.stat")
        used = int((folder / usage).read_bytes()) - sum(numbers.get(name, 0) for name in files)
        return FreeMemory(max(0, min(most, most - used)), most, "this process's control group")

    return read


def _address_space(statm: Path) -> FreeMemory:
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = int(statm.read_bytes().split()[0]) * resource.getpagesize()
    return FreeMemory(max(0, most - used), most, "this process's address space (ulimit -v)")


def _numbers(path: Path) -> dict[bytes, int]:
    """The first number of each line, by the line's first word."""
    return {words[0]: int(words[1]) for words in map(bytes.split, path.read_bytes().splitlines()) if len(words) > 1}


class _VmStatistics(ctypes.Structure):
    """macOS: vm_statistics64 of mach/vm_statistics.h; counts are in pages."""

    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("free", "active", "inactive", "wired")),
        ("events", ctypes.c_uint64 * 9),
        *((name, ctypes.c_uint32) for name in ("purgeable", "speculative")),
        ("compressor_events", ctypes.c_uint64 * 4),
        *((name, ctypes.c_uint32) for name in ("compressor", "throttled", "of_files", "of_programs")),
        ("compressed", ctypes.c_uint64),
    )


class _MacMemory:
    _HOST_VM_INFO64 = 4

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._host = self._library.mach_host_self()

    def read(self) -> FreeMemory:
        stat = _VmStatistics()
        count = ctypes.c_uint32(ctypes.sizeof(stat) // 4)
        if self._library.host_statistics64(self._host, self._HOST_VM_INFO64, ctypes.byref(stat), ctypes.byref(count)):
            raise OSError("host_statistics64 failed")
        # Speculative pages are pages of files that also count as free.
        pages = stat.free - stat.speculative + stat.of_files + stat.purgeable
        return FreeMemory(pages * resource.getpagesize(), _whole_machine().total_bytes)

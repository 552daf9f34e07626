"""How many threads this process should run: as many as the CPUs that affinity and control groups let it use."""

import ctypes
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from mlxr.compiler.errors import HostError
from mlxr.runtime.machine.control_groups import group_folders, text_of

_ROOT = Path("/")


def num_threads(wanted: int | None = None, root: Path = _ROOT) -> int:
    """The number of threads to run.

    Args:
        wanted: how many the user asked for; None: one for each core that this process may use. Two threads on one core
            share its vector units and caches, so that the second one adds little.
        root: the folder of `proc` and `sys`.

    Raises:
        HostError: fewer than 1 or more than the CPUs that this process may use.
    """
    most = usable_cpus(root)
    if wanted is None:
        return max(1, min(most, _cores(root)))
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 1 <= wanted <= most:
        raise HostError(
            f"the number of threads is {wanted!r}; this process may use {most} CPU{'s' * (most > 1)}: "
            + ("give 1" if most == 1 else f"give a number from 1 to {most}")
        )
    return wanted


def usable_cpus(root: Path = _ROOT) -> int:
    """How many CPUs this process may use: those of its affinity, but no more than its control groups' CPU time."""
    quota = cgroup_cpus(root)
    cpus = len(_affinity())
    return cpus if quota is None else max(1, min(cpus, math.ceil(quota)))


def cgroup_cpus(root: Path = _ROOT) -> float | None:
    """CPU seconds per second that this process's control groups allow it; None if they do not limit it."""
    limits = [limit for limit in (*_v2_limits(root), *_v1_limits(root)) if limit is not None]
    return min(limits, default=None)


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _cores(root: Path) -> int:
    """Cores among the usable CPUs; CPUs that share a core count once. On Apple silicon, the performance cores."""
    cpus = _affinity()
    if sys.platform == "darwin":
        return _performance_cores() or len(cpus)
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return len({text_of(root / topology.format(cpu)) or str(cpu) for cpu in cpus})


def _performance_cores() -> int:
    library = ctypes.CDLL(None)
    for name in (b"hw.perflevel0.physicalcpu", b"hw.physicalcpu"):
        value, size = ctypes.c_int32(0), ctypes.c_size_t(4)
        if not library.sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)):
            return value.value
    return 0


def _v2_limits(root: Path) -> Iterator[float | None]:
    for folder in group_folders(root, "cgroup2", ""):
        quota, _, period = (text_of(folder / "cpu.max") or "max").partition(" ")
        yield _ratio(quota, period or "100000")


def _v1_limits(root: Path) -> Iterator[float | None]:
    for folder in group_folders(root, "cgroup", "cpu"):
        yield _ratio(text_of(folder / "cpu.cfs_quota_us"), text_of(folder / "cpu.cfs_period_us"))


def _ratio(quota: str | None, period: str | None) -> float | None:
    try:
        ratio = int(quota or "") / int(period or "")
    except (ValueError, ZeroDivisionError):
        return None
    return ratio if ratio > 0 else None  # v1: -1 means no limit

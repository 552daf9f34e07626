"""The ranks of one machine share its cores, so that none waits for another one's threads."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from mlxr.runtime.machine.control_groups import text_of
from mlxr.runtime.machine.threads import cgroup_cpus

_ROOT = Path("/")


def place_threads(local_rank: int, local_size: int, threads: int | None = None, root: Path = _ROOT) -> int | None:
    """Pins all threads of this process, those of MLX and those to come, to this rank's share of the cores.

    MLX's threads for sockets poll while a sum is under way. On the rank's own cores they only take what its threads,
    which wait for the sum, do not use; elsewhere they would take it from other ranks.

    Args:
        local_rank: which of the ranks on this machine this is.
        local_size: how many there are.
        threads: how many the user asked for; more than a share is no share.
        root: the folder of `proc` and `sys`.

    Returns:
        How many CPUs the share has; None: nothing was pinned, because there are fewer cores than ranks, too few for
        the threads asked for, or because the system does not pin (macOS).
    """
    if local_size == 1 or not hasattr(os, "sched_setaffinity"):
        return None
    cpus = share(sorted(os.sched_getaffinity(0)), local_rank, local_size, root)
    if not cpus or (threads or 0) > len(cpus):
        return None
    tasks = root / "proc/self/task"
    own = [int(task.name) for task in tasks.iterdir()] if tasks.is_dir() else [threading.get_native_id()]
    for thread in own:
        try:
            os.sched_setaffinity(thread, cpus)
        except ProcessLookupError:  # it has ended
            continue
    return len(cpus)


def share(cpus: Sequence[int], local_rank: int, local_size: int, root: Path = _ROOT) -> list[int]:
    """The CPUs of one of the ranks on a machine: whole cores, as equal as can be, and no more than CPU time allows.

    Args:
        cpus: which this process may use, in order. Ranks that may use different ones get what is theirs anyway.
        local_rank: of this rank.
        local_size: how many share them.
        root: the folder of `proc` and `sys`.

    Returns:
        In order; none if there are fewer cores than ranks.
    """
    cores: dict[str, list[int]] = {}
    for cpu in cpus:
        siblings = text_of(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(siblings or str(cpu), []).append(cpu)
    all_cores = list(cores.values())
    if len(all_cores) < local_size:
        return []
    begin, end = (len(all_cores) * rank // local_size for rank in (local_rank, local_rank + 1))
    mine = sorted(cpu for core in all_cores[begin:end] for cpu in core)
    quota = cgroup_cpus(root)
    return mine if quota is None else mine[: max(1, int(quota / local_size))]

"""Keeps `mlx.launch` off the cores of ranks.

The launcher of mlx 0.32.4 passes on what ranks print, and polls its pipes without a pause: a thread for each rank takes
a fifth of a core or more, for as long as the ranks run. On the machine that it runs on, a rank then waits for its core
in the middle of sums, for milliseconds: two ranks with a core each decoded at 0.4 of the speed of one rank.
"""

import contextlib
import os
from pathlib import Path


def give_way_to_ranks() -> bool:
    """Lets the launcher of this process run only where a core is idle. On Linux; elsewhere it does nothing.

    Returns:
        Whether the parent is `mlx.launch`, and was told so.
    """
    if not hasattr(os, "SCHED_IDLE"):
        return False
    process = Path(f"/proc/{os.getppid()}")
    with contextlib.suppress(OSError):
        words = (process / "cmdline").read_bytes().split(b"\0")
        if not any(Path(os.fsdecode(word)).name == "mlx.launch" for word in words[:2]):
            return False
        for thread in (process / "task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))
        return True
    return False

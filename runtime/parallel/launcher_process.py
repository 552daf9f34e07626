"""Keeps `mlx.launch` off the cores of ranks, and ends them when it has ended.

The launcher of mlx 0.32.4 passes on what ranks print and what is typed. A thread for each rank waits until the rank's
input can be written to, which it always can, and so takes a fifth of a core or more, for as long as the ranks run. On
the machine that it runs on, a rank then waits for its core in the middle of sums, for milliseconds: two ranks with a
core each decoded at 0.4 of the speed of one rank.
"""

import contextlib
import functools
import os
import signal
import stat
import subprocess
import threading
import time
from pathlib import Path

_LOOK_SECONDS = 0.5


def is_launcher(process: int) -> bool:
    """Whether a process is `mlx.launch`, by the name of its program."""
    command = b""
    with contextlib.suppress(OSError):
        if Path("/proc/self").exists():
            command = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ")
        else:
            command = subprocess.run(["ps", "-o", "args=", "-p", str(process)], capture_output=True, check=False).stdout
    return any(Path(os.fsdecode(word)).name == "mlx.launch" for word in command.split()[:2])


def give_way_to_ranks() -> bool:
    """Lets the launcher of this process run only where a core is idle. On Linux; elsewhere it does nothing.

    Returns:
        Whether the parent is `mlx.launch`, and was told so.
    """
    parent = os.getppid()
    if not hasattr(os, "SCHED_IDLE") or not is_launcher(parent):
        return False
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{parent}/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))
        return True
    return False


def fill_input() -> None:
    """Fills the pipe of this process's standard input, so that the launcher sleeps until it has something to pass on.

    For a process that will not read its input. On Linux; elsewhere, and if the input is no pipe, it does nothing.
    """
    with contextlib.suppress(OSError, ValueError):
        if not stat.S_ISFIFO(os.fstat(0).st_mode):
            return
        end = os.open("/proc/self/fd/0", os.O_WRONLY | os.O_NONBLOCK)  # the end that the launcher has, too
        try:
            while True:
                os.write(end, bytes(4096))
        finally:
            os.close(end)  # full: BlockingIOError


@functools.cache
def watch_launcher() -> bool:
    """Sends this process SIGTERM, in a thread, when its parent has gone, if that is `mlx.launch`. Call it early.

    Killed, it leaves its ranks behind; on other machines ssh ends them, by SIGHUP. A process that was started in
    another way, such as by nohup, is left alone.

    Returns:
        Whether it watches.
    """
    parent = os.getppid()
    if not is_launcher(parent):
        return False
    threading.Thread(target=_watch, args=(parent,), name="mlxr-launcher-watch", daemon=True).start()
    return True


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    # To the main thread: handlers run there, and it may wait in a system call.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

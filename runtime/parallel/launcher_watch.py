"""Ends a rank when the `mlx.launch` that started it has ended: killed, it leaves its ranks behind.

On other machines ssh ends them, by SIGHUP. A process that was started in another way, such as by nohup, is left alone.
"""

import functools
import os
import signal
import threading
import time

from mlxr.runtime.parallel.launcher_process import is_launcher

_LOOK_SECONDS = 0.5


@functools.cache
def watch_launcher() -> bool:
    """Sends this process SIGTERM, in a thread, when its parent has gone, if that is `mlx.launch`. Call it early.

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

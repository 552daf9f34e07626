"""Starts a rank again when it has ended because another one was lost. It imports nothing heavy: it only waits."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from types import FrameType

from mlxr.runtime.parallel.heartbeat import PARENT_VARIABLE
from mlxr.runtime.parallel.loss import LOST_CODE, write_line

RESTARTED_VARIABLE = "MLXR_RANK_RESTARTED"
"""Set where a process was started again."""
_FIRST_WAIT_SECONDS, _MOST_WAIT_SECONDS = 1.0, 30.0
_STEADY_SECONDS = 60.0
"""A process that ran for so long is started again without a longer wait than the first."""


def keep_running(command: Sequence[str]) -> int:
    """Runs a command until it ends otherwise than by a signal or because a rank was lost; returns its exit code.

    SIGINT and SIGTERM go on to it, and then it is not started again. It ends itself when this process has gone.

    Args:
        command: the program and its arguments.
    """
    signals: list[int] = []
    running: list[subprocess.Popen[bytes]] = []
    told = threading.Event()

    def pass_on(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        told.set()
        for process in running:
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)  # one that is stopped would never end

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    environment = os.environ | {PARENT_VARIABLE: str(os.getpid())}
    wait = 0.0
    while True:
        begin = time.monotonic()
        # In a process group of its own: Ctrl-C in a terminal would else reach it twice, which ends a server at once.
        process = subprocess.Popen(command, env=environment, process_group=0)
        running[:] = [process]
        if signals:
            process.send_signal(signals[-1])
        code = process.wait()
        running.clear()
        if signals or (code != LOST_CODE and code >= 0):
            return code if code >= 0 else 128 - code
        steady = time.monotonic() - begin > _STEADY_SECONDS
        wait = _FIRST_WAIT_SECONDS if steady or not wait else min(2 * wait, _MOST_WAIT_SECONDS)
        reason = f"code {code}" if code >= 0 else f"signal {-code}"
        write_line(f"process {process.pid} ended with {reason}; it is started again in {wait:g} s")
        environment[RESTARTED_VARIABLE] = "1"
        told.wait(wait)
        if signals:
            return 128 + signals[-1]

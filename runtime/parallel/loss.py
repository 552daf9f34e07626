"""What a process does when its group is broken: it says so, once, and ends.

The thread that runs steps may hang in a collective, which nothing can interrupt. So another thread does this.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from mlxr.compiler.errors import RankLostError

LOST_CODE = 75
"""The exit code of a process whose group is broken (EX_TEMPFAIL): started again, it may join a whole one."""
_ANSWER_SECONDS = 2.0
"""Time for callers to get their errors before the process ends."""
_BLAME_SECONDS = 1.5
"""How long a rank whose step failed waits for the news that another one was lost, which is then the reason."""


class Loss:
    """Whether the group is broken, and why. Any thread may use it."""

    def __init__(self, end: Callable[[int], None] = os._exit) -> None:
        """Starts whole.

        Args:
            end: ends the process with a code.
        """
        self._end = end
        self._lock = threading.Lock()
        self._listeners: list[Callable[[RankLostError], object]] = []
        self._is_broken = threading.Event()
        self.error: RankLostError | None = None

    def when_lost(self, listener: Callable[[RankLostError], object]) -> None:
        """Has a function called, in any thread, with the error for callers before the process ends."""
        with self._lock:
            self._listeners.append(listener)
            error = self.error
        if error is not None:
            listener(error)

    def check(self) -> None:
        """Does nothing while the group is whole.

        Raises:
            RankLostError: it is broken.
        """
        if self.error is not None:
            raise self.error

    def wait_for_reason(self) -> None:
        """Waits a moment for the news that a rank was lost, after something failed that may come of it."""
        self._is_broken.wait(_BLAME_SECONDS)

    def tell(self, error: str, line: str, before: Callable[[], object] = lambda: None) -> None:
        """Ends the process; only the first call does anything.

        Args:
            error: for callers.
            line: for standard error.
            before: tells the other ranks.
        """
        with self._lock:
            if self.error is not None:
                return
            self.error = RankLostError(error)
            listeners = list(self._listeners)
        self._is_broken.set()
        write_line(line)
        with suppress(Exception):
            before()
        for listener in listeners:
            with suppress(Exception):
                listener(self.error)
        if listeners:
            time.sleep(_ANSWER_SECONDS)
        self._end(LOST_CODE)

    def wait_for_end(self) -> None:
        """Waits for the end of the process, if the group is broken: else it would end with another code."""
        if self.error is not None:
            time.sleep(3 * _ANSWER_SECONDS)


def write_line(line: str) -> None:
    """Writes to standard error without its lock, which the thread that hangs may have."""
    with suppress(OSError, ValueError):
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"{line}\n".encode(errors="replace"))

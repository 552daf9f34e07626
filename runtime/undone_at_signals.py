"""Lets a process that is told to end remove what it has begun to write, as Ctrl-C does."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class _Ended(BaseException):
    """Leaves the context, so that all within it is undone."""


@contextmanager
def undone_at_signals() -> Iterator[None]:
    """A context in which SIGTERM and SIGHUP raise, and end the process once everything within it is undone.

    Signals for which somebody has an action of their own are left alone, and so are those that are ignored. It does
    nothing outside the main thread, which alone can have actions.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    told: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        told.append(number)
        if len(told) == 1:  # `timeout` sends two: the second must not disturb what undoes
            raise _Ended

    ours = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in ours:
            signal.signal(number, end)
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
        if told:  # whatever became of what `end` raised
            signal.raise_signal(told[0])

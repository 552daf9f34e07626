"""Keeps Ctrl-C out of what must not stop half-way, such as a step that other ranks have been told of."""

import signal
import threading
from types import FrameType
from typing import Any


class Uninterrupted:
    """A `with` block in which SIGINT waits until the end. It changes nothing outside the main thread."""

    def __enter__(self) -> None:
        """Holds the signal back."""
        self._came: FrameType | None = None
        self._has_come = self._is_main = False
        if threading.current_thread() is threading.main_thread():
            self._is_main = True
            self._before: Any = signal.signal(signal.SIGINT, self._note)

    def __exit__(self, *exception: object) -> None:
        """Delivers it."""
        if not self._is_main:
            return
        signal.signal(signal.SIGINT, self._before)
        if self._has_come and callable(self._before):
            self._before(signal.SIGINT, self._came)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._has_come, self._came = True, frame

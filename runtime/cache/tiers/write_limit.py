"""Bounds the bytes that are written within any hour, because disks wear out."""

import time
from collections import deque
from collections.abc import Callable

_HOUR = 3600.0


class WriteLimit:
    """A sliding window of an hour over the writes of this process."""

    def __init__(self, bytes_per_hour: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins with nothing written.

        Args:
            bytes_per_hour: the most bytes within any hour.
            clock: the time in seconds.
        """
        self.bytes_per_hour = bytes_per_hour
        self._clock = clock
        self._writes: deque[tuple[float, int]] = deque()
        self._total = 0

    def take(self, size_bytes: int) -> bool:
        """Whether so many bytes may be written now; if so, counts them."""
        now = self._clock()
        while self._writes and self._writes[0][0] <= now - _HOUR:
            self._total -= self._writes.popleft()[1]
        if self._total + size_bytes > self.bytes_per_hour:
            return False
        self._writes.append((now, size_bytes))
        self._total += size_bytes
        return True

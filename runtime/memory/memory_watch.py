"""Watches the machine's free memory while a model runs, so that it gives memory back before the machine swaps."""

import time
from collections.abc import Callable

from mlxr.runtime.memory.free_memory import FreeMemory, MachineMemory

_INTERVAL = 0.5
"""Seconds between two readings: a reading takes 30 us, a step of a small model 300 us."""
_LEAST_BYTES = 512 << 20


class MemoryWatch:
    """Says when memory is scarce. It becomes scarce below a limit, and stays so until twice as much is free.

    The limit is 5 % of the memory, or 512 MiB if that is more, but never more than an eighth of the memory.

    Attributes:
        is_low: whether memory is scarce, so that nothing new should take any.
    """

    def __init__(
        self, read: Callable[[], FreeMemory] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Starts watching.

        Args:
            read: reads what is free; None: of this machine.
            clock: the time in seconds.
        """
        self.is_low = False
        self._read, self._clock = read or MachineMemory().read, clock
        self._next_reading = clock()

    def poll(self) -> int:
        """Bytes that should be given back now; 0 while there is enough memory, and between two readings.

        A loop calls this in each round. Most calls only ask the clock.
        """
        now = self._clock()
        if now < self._next_reading:
            return 0
        self._next_reading = now + _INTERVAL
        memory = self._read()
        limit = min(max(memory.total_bytes // 20, _LEAST_BYTES), memory.total_bytes // 8)
        self.is_low = memory.free_bytes < (2 * limit if self.is_low else limit)
        return 2 * limit - memory.free_bytes if self.is_low else 0

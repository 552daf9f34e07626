"""The numbers of steps on their way to the card: places in memory that both see, which are used in turn."""

import ctypes
from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlxr.runtime.hosts.cuda.driver import call
from mlxr.runtime.hosts.cuda.handover.pinned_memory import PinnedMemory
from mlxr.runtime.hosts.cuda.launch_graph import Event

_PLACES = 4
"""Most steps that wait for the card before the CPU waits for the first of them."""


class _Place(NamedTuple):
    memory: PinnedMemory
    copied: Event
    numbers: npt.NDArray[np.int32]


class SentNumbers:
    """Places for so many numbers.

    Mutable state: what is there until the card has copied it.
    """

    def __init__(self, count: int) -> None:
        """Allocates them.

        Args:
            count: int32 numbers of a step, at most.

        Raises:
            HostError: the driver refuses.
        """
        self.count = count
        self._places: deque[_Place] = deque()
        for _ in range(_PLACES):
            copied = Event()
            memory = PinnedMemory(4 * count, [copied.wait])
            numbers = np.ctypeslib.as_array((ctypes.c_int32 * count).from_address(memory.address))
            self._places.append(_Place(memory, copied, numbers))

    def send(self, numbers: npt.NDArray[np.int32], address: int, stream: int) -> None:
        """Has a stream copy numbers to an address; waits if it is that many steps behind.

        Raises:
            HostError: the driver refuses, or something on the card has failed.
        """
        self._places.rotate()
        place = self._places[0]
        place.copied.wait()
        place.numbers[: len(numbers)] = numbers
        places = (ctypes.c_uint64(address), ctypes.c_void_p(place.memory.address))
        try:
            call("cuMemcpyHtoDAsync_v2", *places, ctypes.c_size_t(numbers.nbytes), ctypes.c_void_p(stream))
        finally:
            place.copied.record(stream)

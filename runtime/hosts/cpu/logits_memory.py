"""Memory for logits, reused once nothing refers to it: the first touch of each page of new memory is slow."""

import sys
import threading

import numpy as np
import numpy.typing as npt

_MOST_ARRAYS = 2
"""How many arrays are kept: the caller still has the logits of one step while the next step runs."""
_UNUSED = 2
"""What `sys.getrefcount` returns for an array that only our list refers to."""
_MOST_BYTES = 64 << 20


class LogitsMemory:
    """Arrays of f32 rows of one width. Several threads may use it."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._arrays: list[npt.NDArray[np.float32]] = []
        self._lock = threading.Lock()

    def take(self, rows: int) -> npt.NDArray[np.float32]:
        """An array [rows, width] that nothing else refers to, not even to a part of it. Its content is undefined."""
        with self._lock:
            for index in range(len(self._arrays)):
                # A view refers to the array whose memory it shows, so views are counted too.
                if sys.getrefcount(self._arrays[index]) == _UNUSED and len(self._arrays[index]) >= rows:
                    return self._arrays[index][:rows]
            array = np.empty((rows, self._width), np.float32)
            if 0 < array.nbytes <= _MOST_BYTES:
                self._arrays = [array, *self._arrays][:_MOST_ARRAYS]
                return array[:]
            return array

"""Memory for logits that is used again once nobody holds it: of fresh memory, every first touch of a page costs."""

import sys
import threading

import numpy as np
import numpy.typing as npt

_KEPT = 2
"""The caller still holds one step's logits when the next step runs."""
_UNUSED = 2
"""References to an array that only a list holds, as `sys.getrefcount` counts them."""
_MOST_BYTES = 64 << 20


class LogitsMemory:
    """Arrays of a width in f32. Safe to use from several threads."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._arrays: list[npt.NDArray[np.float32]] = []
        self._lock = threading.Lock()

    def take(self, rows: int) -> npt.NDArray[np.float32]:
        """An array of [rows, width] that nobody else holds, wholly or in part. Its content is anything."""
        with self._lock:
            for index in range(len(self._arrays)):
                # Views refer to the array whose memory they show, so that its references count them all.
                if sys.getrefcount(self._arrays[index]) == _UNUSED and len(self._arrays[index]) >= rows:
                    return self._arrays[index][:rows]
            array = np.empty((rows, self._width), np.float32)
            if 0 < array.nbytes <= _MOST_BYTES:
                self._arrays = [array, *self._arrays][:_KEPT]
                return array[:]
            return array

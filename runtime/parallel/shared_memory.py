"""Memory that ranks of one machine see of each other. On Linux; elsewhere they send their rows."""

import mmap
import os
import secrets
import struct
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from mlxr.runtime.parallel.join import Gather

_TOKEN_BYTES = 16
_TOLD = struct.Struct(f"<iiQ{_TOKEN_BYTES}s")
_NONE = _TOLD.pack(-1, -1, 0, bytes(_TOKEN_BYTES))


class SharedMemory:
    """The memory of some ranks, mapped into this process as long as this object lives.

    Attributes:
        addresses: at which this process has the memory of each; none: they cannot share it.
    """

    def __init__(self, size_bytes: int, rank: int, sharing: Sequence[int], gather: Gather) -> None:
        """Allocates zeros, and maps what the others have allocated. All ranks do it at the same time.

        Args:
            size_bytes: of this rank's memory.
            rank: this one.
            sharing: the ranks that see each other's memory, this one among them; none: it only takes part.
            gather: of all ranks.
        """
        self._maps: dict[int, mmap.mmap] = {}
        own, told = -1, _NONE
        token = secrets.token_bytes(_TOKEN_BYTES)  # another container's process may have the same number
        if sharing and hasattr(os, "memfd_create"):
            with suppress(OSError):
                own = os.memfd_create("mlxr-rank")
                os.ftruncate(own, size_bytes + _TOKEN_BYTES)
                os.pwrite(own, token, size_bytes)
                told = _TOLD.pack(os.getpid(), own, size_bytes, token)
        everyone = gather(told)
        with suppress(OSError, ValueError):
            for other in sharing:
                self._maps[other] = _mapped(own if other == rank else None, everyone[other])
        shared = len(self._maps) == len(sharing) > 0
        agreed = gather(bytes([shared or not sharing]))
        if own >= 0:
            os.close(own)
        self.addresses: tuple[int, ...] = ()
        if not all(agreed[other] == b"\1" for other in sharing):
            self._maps.clear()
        elif sharing:
            self._views = [np.frombuffer(self._maps[other], np.uint8) for other in sharing]
            self.addresses = tuple(view.ctypes.data for view in self._views)


def _mapped(own: int | None, told: bytes) -> mmap.mmap:
    """Maps what a rank has told of.

    Raises:
        OSError: this process may not see it.
        ValueError: it is another file, or a rank has none.
    """
    process, file, size, token = _TOLD.unpack(told)
    if process < 0:
        raise ValueError("this rank shares nothing")
    opened = os.dup(own) if own is not None else os.open(f"/proc/{process}/fd/{file}", os.O_RDWR)
    try:
        if os.fstat(opened).st_size != size + _TOKEN_BYTES or os.pread(opened, _TOKEN_BYTES, size) != token:
            raise ValueError("this is another file")
        # All pages now: the first prompt would wait for each of them.
        return mmap.mmap(opened, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    finally:
        os.close(opened)

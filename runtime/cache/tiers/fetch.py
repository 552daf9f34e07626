"""Blocks that are being read by several threads into one array."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Literal

import numpy as np

from mlxr.runtime.cache.block_hashes import Digest
from mlxr.runtime.cache.tiers.block_file import Bytes

Tier = Literal["memory", "disk"]
TIERS: tuple[Tier, ...] = ("memory", "disk")
Source = tuple[Bytes, Tier]
"""K and V of a block, [block_bytes], and the tier that had them."""


class Fetch:
    """Reads blocks. The thread that reads the last one completes the result.

    Attributes:
        result: [blocks, block_bytes]: the first blocks, up to one that was not found.
    """

    def __init__(
        self,
        digests: Sequence[Digest],
        block_bytes: int,
        find: Callable[[Digest], Source | None],
        finish: Callable[[Sequence[Tier]], None],
    ) -> None:
        """Prepares.

        Args:
            digests: of the blocks.
            block_bytes: bytes of a block.
            find: reads a block; None if it is not there.
            finish: called with the tier of each block of the result, before it is complete.
        """
        self.result: Future[Bytes] = Future()
        self.result.set_running_or_notify_cancel()
        self._digests, self._find, self._finish = digests, find, finish
        self._rows = np.empty((len(digests), block_bytes), np.uint8)
        self._tiers: list[Tier] = ["memory"] * len(digests)
        self._found = self._left = len(digests)
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def start(self, readers: Executor) -> None:
        """Lets threads read the blocks."""
        for place in range(len(self._digests)):
            readers.submit(self._read, place)
        if not self._digests:
            self.result.set_result(self._rows)

    def _read(self, place: int) -> None:
        error, source = None, None
        try:
            if place < self._found and (source := self._find(self._digests[place])):
                self._rows[place], self._tiers[place] = source
        except BaseException as raised:  # who waits for the result gets it
            error = raised
        with self._lock:
            self._error = self._error or error
            if source is None:
                self._found = min(self._found, place)
            self._left -= 1
            if self._left:
                return
        try:
            if self._error is not None:
                raise self._error
            self._finish(self._tiers[: self._found])
        except BaseException as raised:
            self.result.set_exception(raised)
        else:
            self.result.set_result(self._rows[: self._found])

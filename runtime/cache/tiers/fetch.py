"""Blocks that are being read into one array, by as many threads as it takes.

Where the system has the files in memory, one thread is the fastest: several hand the interpreter's lock to each other
at every call. Where a disk or a network makes it wait, others join.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from mlxr.runtime.cache.tiers.block_file import Bytes

Tier = Literal["memory", "disk"]
TIERS: tuple[Tier, ...] = ("memory", "disk")

_SLOW_SECONDS = 5e-4
"""When a block takes longer, another thread joins."""


@dataclass(frozen=True, eq=False)
class Fetched:
    """Neighbouring blocks of a sequence.

    Attributes:
        data: [blocks, block_bytes].
        num_tokens: tokens of the sequence whose K and V are in the blocks: as many as these have slots, or fewer if
            other tokens follow in the last one.
        state: the bytes of the state that was asked for; None: none was, or it or a block before it was not found.
    """

    data: Bytes
    num_tokens: int
    state: Bytes | None = None


class Fetch:
    """Reads blocks. The thread that reads the last one completes the result.

    Attributes:
        result: the first blocks, up to one that was not found.
    """

    def __init__(
        self,
        rows: Sequence[Bytes],
        read: Callable[[int, Bytes], Tier | None],
        finish: Callable[[Sequence[Tier]], Fetched],
        after: Callable[[], None],
    ) -> None:
        """Prepares.

        Args:
            rows: where the bytes of each block go.
            read: reads the block of a number to its row, and says which tier had it; None: none, and what is in the
                row is of no use.
            finish: called with the tier of each of the first blocks, up to one that was not found; gives the result.
            after: called when the result is complete, and nobody waits any more.
        """
        self.result: Future[Fetched] = Future()
        self.result.set_running_or_notify_cancel()
        self._read, self._finish, self._after = read, finish, after
        self._rows = rows
        self._tiers: list[Tier] = ["memory"] * len(rows)
        self._count = self._found = self._left = len(rows)
        self._next = 0
        self._error: BaseException | None = None
        self._readers: Executor | None = None
        self._spare = 0
        self._lock = threading.Lock()

    def start(self, readers: Executor, count: int) -> None:
        """Lets one thread read the blocks, and up to so many if it takes long."""
        if not self._count:
            self.result.set_result(self._finish(()))
            return
        self._readers, self._spare = readers, min(count, self._count) - 1
        readers.submit(self._read_all)

    def _read_all(self) -> None:
        """Reads one block after the other, as other threads do."""
        while (place := self._take()) < self._count:
            error, tier, started = None, None, time.perf_counter()
            try:
                if place < self._found:
                    tier = self._read(place, self._rows[place])
            except BaseException as raised:  # who waits for the result gets it
                error = raised
            with self._lock:
                self._error = self._error or error
                if tier is None:
                    self._found = min(self._found, place)
                else:
                    self._tiers[place] = tier
                self._left -= 1
                is_last = not self._left
                joins = self._spare > 0 and self._next < self._count and time.perf_counter() - started > _SLOW_SECONDS
                self._spare -= joins
            if joins and self._readers is not None:
                with suppress(RuntimeError):  # the tiers are being closed: this thread reads the rest
                    self._readers.submit(self._read_all)
            if is_last:
                self._complete()

    def _take(self) -> int:
        with self._lock:
            self._next += 1
            return self._next - 1

    def _complete(self) -> None:
        try:
            if self._error is not None:
                raise self._error
            fetched = self._finish(self._tiers[: self._found])
        except BaseException as raised:
            self.result.set_exception(raised)
        else:
            self.result.set_result(fetched)
            self._after()

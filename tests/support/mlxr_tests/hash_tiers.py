"""Tiers for a `HashHost`: nothing is read or written in the background but when a test says so, and disks have faults.

So a test is the same each time, and can leave blocks on their way for as long as it likes. Every block that comes in is
checked: its slots must be what its tokens make.
"""

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mlxr.runtime.cache.block_hashes import NO_TOKEN, Digest
from mlxr.runtime.cache.prefix_index import CachedBlock
from mlxr.runtime.cache.tiers.block_file import Bytes, StoredBlock, file_bytes
from mlxr.runtime.cache.tiers.block_identity import BlockIdentity
from mlxr.runtime.cache.tiers.block_tiers import BlockTiers
from mlxr_tests.hash_host import is_content
from mlxr_tests.kv_blocks import flip, other

DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": flip,
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "deleted": Path.unlink,
    "another": lambda path: path.write_bytes(min(path.parent.iterdir()).read_bytes()[: path.stat().st_size]),
}
"""What happens to the file of a block: it never grows, so that the tier's limit holds."""


class HandReaders:
    """The threads that read, run by hand.

    Attributes:
        jobs: what they have to do.
    """

    def __init__(self) -> None:
        self.jobs: deque[Callable[[], object]] = deque()

    def submit(self, job: Callable[..., object], *arguments: object) -> None:
        self.jobs.append(partial(job, *arguments))

    def run(self, count: int = 10**9, *, newest: bool = False) -> None:
        """Does some jobs, the newest or the oldest ones."""
        for _ in range(min(count, len(self.jobs))):
            (self.jobs.pop if newest else self.jobs.popleft)()()

    def shutdown(self) -> None:
        self.run()


class HashTiers(BlockTiers):
    """Small tiers.

    Attributes:
        readers: read when a test runs them.
        warnings: what was told.
        is_full: whether writes fail.
        worth_period: every so many times, reading is not worth while; 0: it always is.
    """

    def __init__(
        self,
        block_size: int,
        memory_blocks: int,
        disk_blocks: int = 0,
        folder: Path | None = None,
        *,
        hour_blocks: int = 10**6,
        worth_period: int = 0,
        clock: Callable[[], float] = lambda: 0.0,
        state_bytes: int = 0,
    ) -> None:
        self.warnings: list[str] = []
        sizes = {"block_size": block_size, "block_bytes": 8 * block_size, "state_bytes": state_bytes}
        identity: BlockIdentity = other(model="hash", **sizes)
        size = file_bytes(identity)
        super().__init__(
            identity,
            memory_bytes=memory_blocks * identity.block_bytes,
            disk_bytes=disk_blocks * size,
            folder=folder,
            disk_bytes_per_hour=hour_blocks * size,
            warn=self.warnings.append,
            clock=clock,
        )
        self.limits = memory_blocks * identity.block_bytes, disk_blocks * size
        self._most_readers = 1  # how many join depends on the time that reading takes
        self._readers.shutdown()
        self.readers: Any = HandReaders()
        self._readers = self.readers
        self.is_full = False
        self.worth_period, self._asked = worth_period, 0
        self._may_write = threading.Event()
        if self._disk is not None:
            self._write_file = self._disk.folder.write
            self._disk.folder.write = self._write  # type: ignore[method-assign]

    def worth(self, num_tokens: int, num_bytes: int, from_disk: bool) -> bool:
        self._asked += 1
        return not self.worth_period or self._asked % self.worth_period > 0

    def put(self, blocks: Sequence[CachedBlock], data: Iterable[Bytes]) -> None:
        super().put(blocks, self._checked(blocks, data))

    def save(self, blocks: Sequence[CachedBlock], rows: Iterable[Bytes]) -> int:
        return super().save(blocks, self._checked(blocks, rows))

    def _checked(self, blocks: Sequence[CachedBlock], rows: Iterable[Bytes]) -> Iterator[Bytes]:
        """The bytes of each block, which are not nonsense."""
        for block, row in zip(blocks, rows, strict=False):
            assert len(row) == self.identity.data_bytes(block.tokens)
            tokens = tuple(token for token in block.tokens if token != NO_TOKEN)
            of_block = row if tokens == block.tokens else row[self.identity.state_bytes :]
            assert is_content(of_block[: 8 * len(tokens)], tokens), "nonsense is kept"
            yield row

    def flush(self) -> None:
        """Lets the disk write what waits."""
        self._may_write.set()
        super().flush()
        self._may_write.clear()

    def files(self) -> list[Path]:
        """The files of blocks, in an order that is always the same."""
        return [] if self._disk is None else sorted(self._disk.folder.path.glob("*.kv"))

    def check(self) -> None:
        """What holds while nothing is being written."""
        stats = self.stats()
        memory, disk = self.limits
        assert stats.memory_bytes == sum(block.data.nbytes for block in self._memory.newest_first()) <= memory
        assert stats.disk_bytes <= disk and sum(path.stat().st_size for path in self.files()) <= disk
        assert stats.disk_writes or not disk or self.is_full
        assert len(self.warnings) <= self.is_full, self.warnings

    def check_closed(self) -> None:
        """What holds at the end."""
        self.check()
        stats = self.stats()
        assert not self.readers.jobs and not stats.memory_blocks and not stats.waiting_bytes
        assert self._disk is None or self._disk._thread is None or not self._disk._thread.is_alive()
        assert len(self.warnings) == (bool(self.limits[1]) and not stats.disk_writes)

    def _save(self, names: Sequence[tuple[Digest, int]], blocks: Iterable[StoredBlock]) -> int:
        self._may_write.set()
        saved = super()._save(names, blocks)
        self._may_write.clear()
        return saved

    def _write(self, digest: Digest, branch: bytes, parts: Sequence[bytes | memoryview]) -> None:
        self._may_write.wait()
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        assert self._disk is not None
        self._write_file(digest, branch, parts)
        now = time.time_ns()  # the file system's clock is coarse: which of two files is older would be chance
        os.utime(self._disk.folder.file(digest), ns=(now, now))

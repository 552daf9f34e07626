"""Blocks and states in a folder on disk: written in the background, checked when they are read.

Here and in the other tiers a state is a block of other tokens (`state_tokens`) and of another size.
"""

import errno
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import accumulate, takewhile
from pathlib import Path

from mlxr.compiler.artifact import size
from mlxr.runtime.cache.block_hashes import Digest
from mlxr.runtime.cache.tiers.block_file import Bytes, StoredBlock, encode, file_bytes, read_block, read_tokens
from mlxr.runtime.cache.tiers.block_folder import BlockFolder
from mlxr.runtime.cache.tiers.block_identity import BlockIdentity
from mlxr.runtime.cache.tiers.branches import branch_of

QUEUE_BYTES = 64 << 20
"""Most bytes of blocks that wait to be written, unless it is one block alone. They are in host memory."""
_IN_THE_WAY = (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST)
"""Errors of a write that concern one file only: something else has its name."""
_SECONDS_TO_CLOSE = 60.0
_HOUR = 3600.0


class WriteLimit:
    """Limits the bytes that this process writes within any hour, because disks wear out: a sliding window."""

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


class DiskTier:
    """Blocks of one identity on disk. Any thread may call it.

    Attributes:
        folder: the files.
        is_writing: whether blocks are still written; false after the first error of the disk.
        written_bytes, written_blocks: since the start.
        dropped_blocks: blocks that were not written since the queue or the hour's limit was full.
        damaged_blocks: files that were removed since they were damaged or of something else.
    """

    def __init__(
        self,
        root: Path,
        identity: BlockIdentity,
        limit_bytes: int,
        bytes_per_hour: int,
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Looks at what is there.

        Args:
            root: the folder of all identities.
            identity: which blocks.
            limit_bytes: most bytes of all files in the root.
            bytes_per_hour: most bytes that are written within any hour.
            warn: is told why nothing is written any more, once; called by the thread that writes.
            clock: the time in seconds, for the hour's limit.
        """
        self.folder = BlockFolder(root, identity.folder_name, limit_bytes)
        self.is_writing = True
        self.written_bytes = self.written_blocks = self.dropped_blocks = self.damaged_blocks = 0
        self._identity, self._warn = identity, warn
        self._written_in_an_hour = WriteLimit(bytes_per_hour, clock)
        self._waiting: OrderedDict[Digest, StoredBlock] = OrderedDict()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False

    def __contains__(self, digest: Digest) -> bool:
        return digest in self._waiting or digest in self.folder

    def first_that_fit(self, sizes: Sequence[int]) -> int:
        """How many of the first blocks, of so many bytes each, the folder has room for together."""
        ends = accumulate(file_bytes(self._identity, size_bytes) for size_bytes in sizes)
        return sum(1 for _ in takewhile(lambda end: end <= self.folder.limit_bytes, ends))

    @property
    def waiting_bytes(self) -> int:
        """Bytes of what waits to be written."""
        return self._waiting_bytes

    def add(self, block: StoredBlock, *, wait: bool = False) -> bool:
        """Gives a block to the thread that writes.

        Args:
            block: it stays in host memory until it is written.
            wait: whether to wait for the disk: to see whether another process has removed the block meanwhile, and
                for a place in the queue.

        Returns:
            Whether the block is on disk, or will be unless the disk fails.
        """
        if wait and block.digest not in self._waiting and not self.folder.file(block.digest).is_file():
            self.folder.forget(block.digest)
        if block.digest in self:
            return True
        size_bytes = block.data.nbytes
        in_file = file_bytes(self._identity, size_bytes)
        with self._changed:
            while wait and self.is_writing and self._is_full(size_bytes):
                self._changed.wait()
            if not self.is_writing or self._closing:
                return False
            has_room = in_file <= self.folder.limit_bytes and not self._is_full(size_bytes)
            if not (has_room and self._written_in_an_hour.take(in_file)):
                self.dropped_blocks += 1
                return False
            self._waiting[block.digest] = block
            self._waiting_bytes += size_bytes
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name="mlxr-kv-writer", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return True

    def read(self, digest: Digest, data: Bytes) -> bool:
        """Reads the bytes of a block; the caller also notes its use (`BlockFolder.use`).

        Args:
            digest: of the block.
            data: as many bytes as it has; gets them.

        Returns:
            False if it is not here, or its file was damaged and is removed; `data` is of no use then.
        """
        if block := self._waiting.get(digest):
            data[...] = block.data
            return True
        try:
            is_whole = read_block(self.folder.file(digest), self._identity, digest, data)
        except OSError:  # above all, another process has removed it
            self.folder.forget(digest)
            return False
        if not is_whole:
            with self._changed:
                self.damaged_blocks += 1
            self.folder.remove(digest)
        return is_whole

    def tokens(self, digest: Digest) -> tuple[int, ...]:
        """Reads the tokens of a block, which may be damaged; none if they cannot be read."""
        try:
            return read_tokens(self.folder.file(digest), self._identity)
        except OSError:
            return ()

    def flush(self) -> None:
        """Waits until nothing waits to be written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)

    def close(self) -> None:
        """Writes what waits, and ends the thread. A disk that hangs is given up after a minute."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_SECONDS_TO_CLOSE)
        self.folder.set_times()

    def _is_full(self, size_bytes: int) -> bool:
        return bool(self._waiting) and self._waiting_bytes + size_bytes > QUEUE_BYTES

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                block = next(iter(self._waiting.values()))
            error = self._write(block)
            with self._changed:
                done = [block] if error is None else list(self._waiting.values())
                for waiting in done:
                    del self._waiting[waiting.digest]
                    self._waiting_bytes -= waiting.data.nbytes
                self.is_writing = error is None
                self._changed.notify_all()
            if error is not None:
                reason = getattr(error, "strerror", None) or error
                folder, kept = self.folder.path.parent, size(self.folder.size_bytes)
                self._warn(f"{folder}: {reason}; no more blocks of the KV cache are written there, {kept} of them are")
                return

    def _write(self, block: StoredBlock) -> Exception | None:
        """Writes a block; returns the error after which nothing more should be written."""
        try:
            branch, parts = branch_of(block.parent, block.tokens), encode(self._identity, block)
            try:
                self.folder.write(block.digest, branch, parts)
            except FileNotFoundError:  # somebody has just removed the folder
                self.folder.write(block.digest, branch, parts)
        except OSError as error:
            return None if error.errno in _IN_THE_WAY else error
        except Exception as error:  # whatever it is: others wait for this thread, and must not wait for ever
            return error
        self.written_blocks += 1
        self.written_bytes += sum(map(len, parts))
        return None

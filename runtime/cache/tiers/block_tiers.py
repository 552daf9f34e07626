"""Both tiers: blocks that the arena evicts go to host memory, from there to disk, and come back by their digests.

A prompt may leave what is stored, or end, within a block. Then it gets the first tokens of a block that begins alike.

A state is a block too, with a name of its own (`state_tokens`). It is of use after exactly its tokens, so it comes back
together with the blocks before it (`find_state`).

The thread that runs steps calls everything here. No call waits for the disk, except `save`, `flush` and `close`.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path

import numpy as np

from mlxr.runtime.cache.block_hashes import NO_TOKEN, BlockHashes, Digest, block_digest, state_tokens
from mlxr.runtime.cache.prefix_index import CachedBlock, num_common
from mlxr.runtime.cache.tiers.block_file import Bytes, StoredBlock
from mlxr.runtime.cache.tiers.block_identity import BlockIdentity
from mlxr.runtime.cache.tiers.branches import branch_of
from mlxr.runtime.cache.tiers.disk_tier import DiskTier
from mlxr.runtime.cache.tiers.fetch import TIERS, Fetch, Fetched, Tier
from mlxr.runtime.cache.tiers.memory_tier import MemoryTier, give_memory_back
from mlxr.runtime.cache.tiers.rates import Worth
from mlxr.runtime.cache_folder import KV_FOLDER, cache_folder

_LOG = logging.getLogger(__name__)

_READERS = 4
_CANDIDATES = 8
"""Blocks of a branch that are looked at, at most; the tokens of those on disk are read for that."""


@dataclass(frozen=True)
class TierStats:
    """What the tiers hold, and what they have done since they were made. A state counts as a block.

    Attributes:
        memory_blocks, memory_bytes: in host memory.
        disk_blocks: on disk, of this identity.
        disk_bytes: on disk, of all identities in the root.
        waiting_bytes: in host memory, waiting to be written.
        memory_hits, disk_hits: blocks that were fetched.
        written_blocks, written_bytes: to disk.
        dropped_blocks: not written to disk, as its queue or the hour's limit was full.
        damaged_blocks: files that were removed, as they were damaged or of something else.
        disk_writes: whether the disk tier still writes.
        memory_bytes_per_second, disk_bytes_per_second: how fast blocks are read.
        computed_tokens_per_second: how fast they are computed.
    """

    memory_blocks: int
    memory_bytes: int
    disk_blocks: int
    disk_bytes: int
    waiting_bytes: int
    memory_hits: int
    disk_hits: int
    written_blocks: int
    written_bytes: int
    dropped_blocks: int
    damaged_blocks: int
    disk_writes: bool
    memory_bytes_per_second: int
    disk_bytes_per_second: int
    computed_tokens_per_second: int


class BlockTiers:
    """Blocks of one identity in host memory and on disk.

    Attributes:
        identity: theirs.
    """

    def __init__(
        self,
        identity: BlockIdentity,
        *,
        memory_bytes: int,
        disk_bytes: int,
        folder: Path | None = None,
        disk_bytes_per_hour: int,
        warn: Callable[[str], None] = lambda text: _LOG.warning("warning: %s", text),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Looks at what is on disk.

        Args:
            identity: of the blocks.
            memory_bytes: most bytes of blocks in host memory, besides a queue of 64 MiB at most; 0: no block.
            disk_bytes: most bytes of all files in the folder, those of other identities too; 0: none is read or
                written.
            folder: of all identities; None: in MLXR's cache.
            disk_bytes_per_hour: most bytes that are written within any hour, because disks wear out.
            warn: is told, once, why nothing is written any more; perhaps by another thread.
            clock: the time in seconds, for the hour's limit.

        Raises:
            MlxrError: there is no place for the cache.
        """
        self.identity = identity
        self._lock = threading.Lock()
        self._memory = MemoryTier(memory_bytes)
        self._disk: DiskTier | None = None
        if disk_bytes:
            root = cache_folder(KV_FOLDER) if folder is None else folder
            self._disk = DiskTier(root, identity, disk_bytes, disk_bytes_per_hour, warn, clock)
        self._most_readers = _READERS
        self._readers = ThreadPoolExecutor(_READERS, "mlxr-kv-reader")
        self._worth = Worth()
        self._hits = dict.fromkeys(TIERS, 0)

    def count(self, digests: Sequence[Digest]) -> int:
        """How many of the first blocks are here, without one missing between them. It reads no file."""
        disk: DiskTier | tuple[()] = self._disk or ()
        return sum(1 for _ in takewhile(lambda digest: digest in self._memory or digest in disk, digests))

    def count_in_memory(self, digests: Sequence[Digest]) -> int:
        """How many of the first blocks are in host memory, without one missing between them."""
        return sum(1 for _ in takewhile(self._memory.__contains__, digests))

    def find_state(
        self, tokens: Sequence[int], hashes: BlockHashes, least: int, num_blocks: int
    ) -> tuple[int, Digest, int]:
        """The longest start of a prompt, without its last token, whose state is here. It reads no file.

        Args:
            tokens: the prompt.
            hashes: of the same tokens.
            least: it must be longer.
            num_blocks: first full blocks that the arena or a tier has. The state may end within the next block.

        Returns:
            Its tokens, and the digest and the bytes of the state; 0 tokens if there is none.
        """
        size, disk = hashes.block_size, self._disk
        for number in range(num_blocks, least // size - 1, -1):
            start, parent = number * size, hashes.parent(number)
            branch = branch_of(parent, (NO_TOKEN,))
            with self._lock:
                may_be_here = bool(self._memory.branches.newest(branch, 1))
            if not may_be_here and (disk is None or not disk.folder.newest(branch, 1)):
                continue
            for length in range(min(start + size, len(tokens)) - 1, max(start - 1, least), -1):
                names = state_tokens(tokens[start:length], size)
                if self.count([digest := block_digest(parent, names)]):
                    return length, digest, self.identity.data_bytes(names)
        return 0, b"", 0

    def fetch(
        self,
        digests: Sequence[Digest],
        parent: Digest = b"",
        rest: Sequence[int] = (),
        *,
        state: Digest = b"",
        state_bytes: int = 0,
    ) -> "Future[Fetched]":
        """Starts to read blocks, which stay where they are.

        Args:
            digests: of the blocks, in the order of a sequence.
            parent: the digest of what comes before `rest`.
            rest: how the sequence goes on, less than a block. A block that begins like this may come last. It is looked
                for on disk only if others come from there.
            state: the digest of a state that is wanted with the blocks, without `rest`; empty: none is.
            state_bytes: its bytes.

        Returns:
            The first blocks, up to one that is not here any more or is damaged. It cannot be cancelled.
        """
        started = time.perf_counter()
        disk, block_size = self._disk, self.identity.block_size
        disk_of_rest = disk if self.count_in_memory(digests) < len(digests) else None
        used, num_rest = [*digests, *([state] if state else [])], 0
        blocks = np.empty((len(digests) + bool(rest), self.identity.block_bytes), np.uint8)
        of_state = np.empty(state_bytes, np.uint8)
        rows = [*blocks, *([of_state] if state else [])]

        def read_block(digest: Digest, data: Bytes) -> Tier | None:
            if block := self._memory.get(digest):
                data[...] = block.data
                return "memory"
            return "disk" if disk is not None and disk.read(digest, data) else None

        def read(place: int, data: Bytes) -> Tier | None:
            nonlocal num_rest
            if place < len(used):
                return read_block(used[place], data)
            digest, num_rest = self._longest(parent, rest, disk_of_rest)
            used.append(digest)
            return read_block(digest, data) if num_rest else None

        def finish(tiers: Sequence[Tier]) -> Fetched:
            self._count_hits(tiers, rows, time.perf_counter() - started)
            del used[len(tiers) :]
            with self._lock:
                for digest in reversed(used):
                    self._memory.use(digest)
            if disk is not None:
                disk.folder.use(used)
            is_whole = len(tiers) > len(digests)
            num_tokens = min(len(tiers), len(digests)) * block_size + num_rest * is_whole
            return Fetched(blocks[: len(tiers)], num_tokens, of_state if state and is_whole else None)

        def set_times() -> None:
            if disk is not None and disk.folder.has_old_times:
                disk.folder.set_times()

        fetch = Fetch(rows, read, finish, set_times)
        fetch.start(self._readers, self._most_readers)
        return fetch.result

    def put(self, blocks: Sequence[CachedBlock], data: Iterable[Bytes]) -> None:
        """Takes blocks that the arena evicts. What does not fit in host memory goes to disk, in the background.

        Args:
            blocks: their names.
            data: the bytes of each, which are copied.
        """
        if self._disk is None and not self._memory.limit_bytes:
            return
        for block, row in zip(blocks, data, strict=True):
            with self._lock:
                if block.digest in self._memory:
                    self._memory.use(block.digest)
                    continue
            stored = StoredBlock(block.digest, block.parent, block.tokens, row.copy())
            with self._lock:
                leaving = self._memory.add(stored)
            self._to_disk(leaving)

    def save(self, blocks: Sequence[CachedBlock], rows: Iterable[Bytes]) -> int:
        """Writes blocks to disk, and waits for that.

        Args:
            blocks: their names, in the order of a sequence.
            rows: the bytes of each. No more of them are asked for than the disk takes.

        Returns:
            How many of the first blocks are on disk now: fewer than all if the limits of size and of this hour, or the
            disk itself, do not allow more.
        """
        pairs = zip(blocks, rows, strict=False)
        stored = (StoredBlock(block.digest, block.parent, block.tokens, row) for block, row in pairs)
        return self._save([(block.digest, self.identity.data_bytes(block.tokens)) for block in blocks], stored)

    def flush(self) -> None:
        """Waits until all blocks that have been given to the disk are written."""
        if self._disk is not None:
            self._disk.flush()

    def close(self) -> None:
        """Saves what is in host memory, as far as the limits allow, and ends the threads. Files stay."""
        with self._lock:
            blocks = self._memory.newest_first()
        self._save([(block.digest, block.data.nbytes) for block in blocks], blocks)
        with self._lock:
            self._memory.shrink(self._memory.size_bytes)
        self._readers.shutdown()
        if self._disk is not None:
            self._disk.close()

    def shrink(self, size_bytes: int) -> int:
        """Frees host memory: the least recently used blocks go to disk, as far as the queue takes them.

        Args:
            size_bytes: how many bytes are wanted.

        Returns:
            How many bytes have left.
        """
        with self._lock:
            leaving = self._memory.shrink(size_bytes)
        freed = sum(block.data.nbytes for block in leaving)
        self._to_disk(leaving)
        if leaving:
            leaving.clear()
            give_memory_back()
        return freed

    def computed(self, num_tokens: int, seconds: float) -> None:
        """Notes how long a step took that computed so many tokens of prompts."""
        self._worth.computing.add(num_tokens, seconds)

    def worth(self, num_tokens: int, num_bytes: int, from_disk: bool) -> bool:
        """Whether a fetch takes less time than computing tokens, by what was measured.

        Args:
            num_tokens: that then need not be computed.
            num_bytes: of the fetch.
            from_disk: whether anything of it is not in host memory (`count_in_memory`).
        """
        return self._worth(num_tokens, num_bytes, from_disk)

    def stats(self) -> TierStats:
        """What the tiers hold and have done; see `TierStats`."""
        disk, reading = self._disk, self._worth.reading
        return TierStats(
            memory_blocks=len(self._memory),
            memory_bytes=self._memory.size_bytes,
            disk_blocks=len(disk.folder) if disk else 0,
            disk_bytes=disk.folder.size_bytes if disk else 0,
            waiting_bytes=disk.waiting_bytes if disk else 0,
            memory_hits=self._hits["memory"],
            disk_hits=self._hits["disk"],
            written_blocks=disk.written_blocks if disk else 0,
            written_bytes=disk.written_bytes if disk else 0,
            dropped_blocks=disk.dropped_blocks if disk else 0,
            damaged_blocks=disk.damaged_blocks if disk else 0,
            disk_writes=disk.is_writing if disk else False,
            memory_bytes_per_second=int(reading["memory"].per_second),
            disk_bytes_per_second=int(reading["disk"].per_second),
            computed_tokens_per_second=int(self._worth.computing.per_second),
        )

    def _longest(self, parent: Digest, tokens: Sequence[int], disk: DiskTier | None) -> tuple[Digest, int]:
        """The block after a parent that has most of the first tokens in common with these, and how many; else 0."""
        branch, best = branch_of(parent, tokens), (b"", 0)
        with self._lock:
            candidates = self._memory.branches.newest(branch, _CANDIDATES)
        if disk is not None:
            candidates += disk.folder.newest(branch, _CANDIDATES)
        for digest in candidates:
            block = self._memory.get(digest)
            own = block.tokens if block else disk.tokens(digest) if disk is not None else ()
            count = num_common(own, tokens)
            if count > best[1] and block_digest(parent, own) == digest:
                best = digest, count
                if count == len(tokens):
                    break
        return best

    def _to_disk(self, blocks: Sequence[StoredBlock]) -> None:
        if self._disk is not None:
            for block in blocks:
                self._disk.add(block)

    def _save(self, names: Sequence[tuple[Digest, int]], blocks: Iterable[StoredBlock]) -> int:
        """Saves blocks, whose digests and sizes are known before their bytes are."""
        disk = self._disk
        if disk is None:
            return 0
        most = disk.first_that_fit([size for _, size in names])  # of more, the last would remove the first
        digests = [digest for digest, _ in names[:most]]
        disk.folder.use(digests)
        stored = islice(blocks, len(digests))
        added = [block.digest for block in takewhile(lambda block: disk.add(block, wait=True), stored)]
        disk.flush()
        saved = list(takewhile(disk.folder.__contains__, added))
        disk.folder.use(saved)
        disk.folder.set_times()
        return len(saved)

    def _count_hits(self, tiers: Sequence[Tier], rows: Sequence[Bytes], seconds: float) -> None:
        """Counts fetched blocks; the time is that of the slowest tier."""
        if not tiers:
            return
        with self._lock:
            for tier in TIERS:
                self._hits[tier] += tiers.count(tier)
            slowest: Tier = "disk" if "disk" in tiers else "memory"
            num_bytes = sum(row.nbytes for row, tier in zip(rows, tiers, strict=False) if tier == slowest)
            self._worth.reading[slowest].add(num_bytes, seconds)

"""Connects the arena with the tiers: evicted blocks go there, and come back when a prompt needs them.

A block is saved before the step that writes over it. A prompt whose blocks a tier has waits in the queue while they are
read; then they are written into the arena before the next step. The last block may be one of which the prompt uses only
the first tokens. It is the sequence's own: only these tokens are committed, and the sequence writes over the others.
"""

import threading
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import MlxrError
from mlxr.runtime.cache.pager import Evicted, Pager, Prefix
from mlxr.runtime.cache.tiers.block_tiers import BlockTiers
from mlxr.runtime.cache.tiers.fetch import Fetched
from mlxr.runtime.engine.request import Request
from mlxr.runtime.hosts.host import Host

_MOST_FETCHES = 2
"""Requests whose blocks are read at a time: what is read has no place in the arena yet, and no other limit."""

_READ_BYTES = 16 << 20
"""Bytes of blocks that are read from the arena at a time when all are saved."""


class TierLink:
    """Moves blocks between one arena and its tiers.

    Attributes:
        tiers: where they go.
        restored_tokens: tokens that came back.
        is_paused: whether evicted blocks are dropped, because the machine lacks memory.
    """

    def __init__(self, host: Host, pager: Pager, tiers: BlockTiers, wake: threading.Event) -> None:
        """Connects them.

        Args:
            host: reads and writes the arena.
            pager: of the arena; it records evictions.
            tiers: of blocks of this arena.
            wake: is set when blocks have been read.
        """
        self._host, self._pager, self._wake = host, pager, wake
        self.tiers = tiers
        self.restored_tokens = 0
        self.is_paused = False
        self._fetching: list[Request] = []

    def save(self, evicted: Sequence[Evicted]) -> None:
        """Gives blocks to the tiers that the prefix cache has just given up, and that nothing has written over."""
        if evicted and not self.is_paused:
            self.tiers.put(evicted, self._host.read_blocks([block.block_id for block in evicted]))

    def save_all(self) -> int:
        """Writes all blocks that can be found in the arena to disk; returns how many of them are there now."""
        cached = self._pager.cached_blocks()
        return self.tiers.save(cached, self._rows([block.block_id for block in cached]))

    def _rows(self, block_ids: Sequence[int]) -> Iterator[npt.NDArray[np.uint8]]:
        """K and V of each block; a few are read at a time, because the arena may be most of the memory."""
        count = max(1, _READ_BYTES // self._host.block_bytes)
        for start in range(0, len(block_ids), count):
            yield from self._host.read_blocks(block_ids[start : start + count])

    def fetches(self, request: Request, prefix: Prefix) -> bool:
        """See `Restorer`."""
        fetch = request.fetch
        if fetch.blocks is not None:
            return not fetch.blocks.done()
        size, tokens = self._pager.block_size, request.answer.tokens
        first = prefix.num_tokens // size
        digests = request.hashes.of(tokens, len(tokens) - 1)[first:]
        count = self.tiers.count(digests)
        num_tokens = (first + count) * size - prefix.num_tokens
        from_disk = self.tiers.count_in_memory(digests) < count
        if not count or not self.tiers.worth(num_tokens, from_disk):
            return False
        self._fetching = [other for other in self._fetching if other.fetch.blocks and not other.answer.is_done]
        if len(self._fetching) >= _MOST_FETCHES:
            return True  # its turn comes when one of these has begun
        self._fetching.append(request)
        end = (first + count) * size
        rest = tokens[end : min(end + size, len(tokens) - 1)]  # the last token's logits are wanted
        fetch.blocks = self.tiers.fetch(digests[:count], request.hashes.parent(first + count), rest)
        fetch.first_block = first
        fetch.blocks.add_done_callback(lambda _: self._wake.set())
        return True

    def restore(self, request: Request, prefix: Prefix) -> int:
        """See `Restorer`."""
        fetch, seq_id = request.fetch, request.run.seq_id
        blocks, fetch.blocks = fetch.blocks, None
        if blocks is None or seq_id is None:
            return 0
        try:
            return self._restored(blocks.result(), request, seq_id, prefix)
        except BaseException as error:
            self._pager.truncate(seq_id, prefix.num_tokens)
            if isinstance(error, MlxrError | OSError | RuntimeError | MemoryError):
                return 0  # what cannot be brought back is computed
            raise

    def _restored(self, fetched: Fetched, request: Request, seq_id: int, prefix: Prefix) -> int:
        size, fetched_from = self._pager.block_size, request.fetch.first_block
        first = prefix.num_tokens // size
        data = fetched.data[first - fetched_from :]
        num_tokens = fetched.num_tokens - (first - fetched_from) * size
        # While the blocks were read, the arena may have lost blocks before them, or got some of them.
        if first < fetched_from or num_tokens <= 0 or prefix.num_tokens % size:
            return 0
        self._pager.append(seq_id, num_tokens)
        self.save(self._pager.take_evicted())
        copies = self._pager.take_copies()
        assert not copies, "a sequence that ends with a full block needs no copy"
        blocks = self._pager.blocks_of(seq_id)[first : first + len(data)]
        self._host.write_blocks(blocks, data)
        self._pager.commit(seq_id, request.answer.tokens, request.hashes, prefix.num_tokens + num_tokens)
        self.restored_tokens += num_tokens
        return num_tokens

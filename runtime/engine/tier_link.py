"""Connects the arena with the tiers: evicted blocks go there, and come back when a prompt needs them.

A block is saved before the step that writes over it. A prompt whose blocks a tier has waits in the queue while they are
read; then they are written into the arena before the next step. The last block may be one of which the prompt uses only
the first tokens. It is the sequence's own: only these tokens are committed, and the sequence writes over the others.

Of a model with states, the tiers have states after full blocks, too. What comes back ends with such a block, and its
state becomes a snapshot before the prompt's prefix is looked for again.
"""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace

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
        if pager.states is not None:
            pager.states.slots.records_evictions = True

    def save(self, evicted: Sequence[Evicted]) -> None:
        """Gives blocks to the tiers that the prefix cache has just given up, and that nothing has written over."""
        if evicted and not self.is_paused:
            self.tiers.put(evicted, self._host.read_blocks([block.block_id for block in evicted]))
        self._save_states()

    def _save_states(self) -> None:
        """Gives the tiers the snapshots that have just been given up, and that nothing has written over."""
        states, tiers = self._pager.states, self.tiers.states
        evicted = [] if states is None else states.slots.take_evicted()
        if evicted and tiers is not None and not self.is_paused:
            tiers.put(evicted, self._host.read_blocks([block.block_id for block in evicted], None))

    def save_all(self) -> int:
        """Writes all blocks that can be found in the arena to disk; returns how many of them are there now."""
        states, tiers = self._pager.states, self.tiers.states
        if states is not None and tiers is not None:
            kept = list(states.slots.blocks.values())
            tiers.save(kept, self._rows([block.block_id for block in kept], tiers.identity.block_bytes, None))
        cached = self._pager.cached_blocks()
        return self.tiers.save(cached, self._rows([block.block_id for block in cached], self._host.block_bytes, 0))

    def _rows(self, block_ids: Sequence[int], size_bytes: int, group: int | None) -> Iterator[npt.NDArray[np.uint8]]:
        """Each block; a few are read at a time, because the arena may be most of the memory."""
        count = max(1, _READ_BYTES // size_bytes)
        for start in range(0, len(block_ids), count):
            yield from self._host.read_blocks(block_ids[start : start + count], group)

    def fetches(self, request: Request, prefix: Prefix) -> bool:
        """See `Restorer`."""
        fetch = request.fetch
        if fetch.blocks is not None:  # it may have been read since `adopt` saw that it was not
            return not fetch.blocks.done() or fetch.state_after > 0
        if self._pager.states is not None:
            return self._fetches_with_state(request, prefix)
        size, tokens = self._pager.block_size, request.answer.tokens
        first = prefix.num_tokens // size
        digests = request.hashes.of(tokens, len(tokens) - 1)[first:]
        count = self.tiers.count(digests)
        num_tokens = (first + count) * size - prefix.num_tokens
        from_disk = self.tiers.count_in_memory(digests) < count
        if not count or not self.tiers.worth(num_tokens, from_disk):
            return False
        if not self._may_begin(request):
            return True
        end = (first + count) * size
        rest = tokens[end : min(end + size, len(tokens) - 1)]  # the last token's logits are wanted
        fetch.blocks = self.tiers.fetch(digests[:count], request.hashes.parent(first + count), rest)
        fetch.first_block = first
        fetch.blocks.add_done_callback(lambda _: self._wake.set())
        return True

    def _may_begin(self, request: Request) -> bool:
        """Whether a request's blocks may be read now; if not, its turn comes when another one has begun."""
        self._fetching = [other for other in self._fetching if other.fetch.blocks and not other.answer.is_done]
        if len(self._fetching) >= _MOST_FETCHES:
            return False
        self._fetching.append(request)
        return True

    def _fetches_with_state(self, request: Request, prefix: Prefix) -> bool:
        """`fetches` of a model with states: up to the last full block of which the tiers have the state."""
        fetch, states, size, tokens = request.fetch, self.tiers.states, self._pager.block_size, request.answer.tokens
        if states is None or fetch.has_read_state:
            return False
        digests = request.hashes.of(tokens, len(tokens) - 1)
        first = prefix.num_known // size
        most = first + self.tiers.count(digests[first:])
        last = next((n for n in range(most, prefix.num_tokens // size, -1) if states.count([digests[n - 1]])), 0)
        wanted, after = digests[first:last], digests[max(last - 1, 0) : last]
        from_disk = self.tiers.count_in_memory(wanted) < len(wanted) or not states.count_in_memory(after)
        if not last or not self.tiers.worth(last * size - prefix.num_tokens, from_disk):
            return False
        if not self._may_begin(request):
            return True
        fetch.first_block, fetch.state_after, fetch.has_read_state = min(first, last), last * size, True
        fetch.blocks = both(self.tiers.fetch(wanted), states.fetch(after))
        fetch.blocks.add_done_callback(lambda _: self._wake.set())
        return True

    def adopt(self, request: Request) -> None:
        """See `Restorer`."""
        fetch, after, states = request.fetch, request.fetch.state_after, self._pager.states
        if not after or fetch.blocks is None or not fetch.blocks.done() or states is None:
            return
        blocks, fetch.state_after = fetch.blocks, 0
        try:
            data = blocks.result().state
            if data is None:
                fetch.blocks = None
                return

            def write(slot: int) -> None:
                self._save_states()
                self._host.write_blocks([slot], np.ascontiguousarray(data[None]), None)

            states.adopt(request.answer.tokens, request.hashes, after, write)
        except (MlxrError, OSError, RuntimeError, MemoryError):
            fetch.blocks = None  # what cannot be brought back is computed
            return
        if fetch.first_block * self._pager.block_size == after:  # K and V are in the arena
            fetch.blocks = None
            self.restored_tokens += after

    def restore(self, request: Request, prefix: Prefix) -> int:
        """See `Restorer`."""
        fetch, seq_id = request.fetch, request.run.seq_id
        blocks, fetch.blocks = fetch.blocks, None
        if blocks is None or seq_id is None:
            return 0
        restored = 0
        try:
            restored = self._restored(blocks.result(), request, seq_id, prefix)
        except BaseException as error:
            self._pager.truncate(seq_id, self._kept(prefix))
            if not isinstance(error, MlxrError | OSError | RuntimeError | MemoryError):
                raise  # what cannot be brought back is computed
        if not restored and self._kept(prefix) < prefix.num_tokens:
            self._pager.truncate(seq_id, 0)
            return -prefix.num_tokens
        return restored

    def _kept(self, prefix: Prefix) -> int:
        """Tokens of a prefix that a sequence keeps where nothing is restored: none if it has no state of them."""
        return 0 if self._pager.states is not None and prefix.state_slot < 0 else prefix.num_tokens

    def _restored(self, fetched: Fetched, request: Request, seq_id: int, prefix: Prefix) -> int:
        size, fetched_from = self._pager.block_size, request.fetch.first_block
        first = prefix.num_tokens // size
        data = fetched.data[first - fetched_from :]
        num_tokens = fetched.num_tokens - (first - fetched_from) * size
        # While the blocks were read, the arena may have lost blocks before them, or got some of them.
        if first < fetched_from or num_tokens <= 0 or prefix.num_tokens % size:
            return 0
        states, after = self._pager.states, prefix.num_tokens + num_tokens
        if states is not None and states.slots.find(request.answer.tokens, request.hashes, after)[0] != after:
            return 0
        self._pager.append(seq_id, num_tokens)
        self.save(self._pager.take_evicted())
        copies = self._pager.take_copies()
        assert not copies, "a sequence that ends with a full block needs no copy"
        blocks = self._pager.blocks_of(seq_id)[first : first + len(data)]
        self._host.write_blocks(blocks, data)
        if states is not None:
            assert states.resume(seq_id, request.answer.tokens, request.hashes, after), "its snapshot was found"
        self._pager.commit(seq_id, request.answer.tokens, request.hashes, prefix.num_tokens + num_tokens)
        self.restored_tokens += num_tokens
        return num_tokens


def both(blocks: "Future[Fetched]", state: "Future[Fetched]") -> "Future[Fetched]":
    """Blocks and the state after them, when both have been read."""
    result: Future[Fetched] = Future()
    result.set_running_or_notify_cancel()
    left, lock = [blocks, state], threading.Lock()

    def done(future: "Future[Fetched]") -> None:
        with lock:
            left.remove(future)
            if left:
                return
        try:
            found = state.result()
            result.set_result(replace(blocks.result(), state=found.data[0] if found.num_tokens else None))
        except BaseException as error:
            result.set_exception(error)

    blocks.add_done_callback(done)
    state.add_done_callback(done)
    return result

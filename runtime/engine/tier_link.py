"""Connects the arena with the tiers: evicted blocks go there, and come back when a prompt needs them.

A block is saved before the step that writes over it. A prompt whose blocks a tier has waits in the queue while they are
read; then they are written into the arena before the next step. The last block may be one of which the prompt uses only
the first tokens. It is the sequence's own: only these tokens are committed, and the sequence writes over the others.

Of a model with states, a prompt needs the state after the tokens that it begins with. The longest one is read, together
with the blocks before it that the arena lacks; the block within which it ends comes with it.
"""

import threading
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import MlxrError
from mlxr.runtime.cache.block_hashes import Digest
from mlxr.runtime.cache.pager import Pager, Prefix
from mlxr.runtime.cache.prefix_index import CachedBlock, CachedState
from mlxr.runtime.cache.tiers.block_tiers import BlockTiers
from mlxr.runtime.cache.tiers.fetch import Fetched
from mlxr.runtime.engine.request import Request
from mlxr.runtime.hosts.host import Host

_MOST_FETCHES = 2
"""Requests whose blocks are read at a time: what is read has no place in the arena yet, and no other limit."""

_READ_BYTES = 16 << 20
"""Bytes of blocks that are read from the arena at a time when all are saved."""


class _Stored(NamedTuple):
    """What the tiers have of a prompt beyond what the arena has.

    Attributes:
        first: blocks before it, which the arena must have.
        digests: of the full blocks after these.
        end: tokens of the prompt that need not be computed with it.
        state: the digest of the state after these tokens; empty: the model keeps none.
        state_bytes: its bytes.
    """

    first: int
    digests: list[Digest]
    end: int
    state: Digest = b""
    state_bytes: int = 0


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

    def save(self, evicted: Sequence[CachedBlock]) -> None:
        """Gives what the pager has just given up to the tiers; nothing has written over it yet."""
        if evicted and not self.is_paused:
            kept = self._with_bytes(evicted)
            self.tiers.put(kept, self._rows(kept))

    def save_all(self) -> int:
        """Writes all blocks and states that can be found to disk; returns how many of them are there now."""
        kept = self._with_bytes(self._pager.cached())
        return self.tiers.save(kept, self._rows(kept))

    def _with_bytes(self, blocks: Sequence[CachedBlock]) -> Sequence[CachedBlock]:
        """Those that have any: in a model without attention, blocks only number the tokens."""
        return blocks if self._host.block_bytes else [block for block in blocks if isinstance(block, CachedState)]

    def _rows(self, blocks: Sequence[CachedBlock]) -> Iterator[npt.NDArray[np.uint8]]:
        """The bytes of each; a few are read at a time, because the arena may be most of the memory."""
        for are_states, run in groupby(blocks, lambda block: isinstance(block, CachedState)):
            if are_states:
                yield from (self._state_row(state) for state in run if isinstance(state, CachedState))
                continue
            block_ids, count = [block.block_id for block in run], max(1, _READ_BYTES // self._host.block_bytes)
            for start in range(0, len(block_ids), count):
                yield from self._host.read_blocks(block_ids[start : start + count])

    def _state_row(self, state: CachedState) -> npt.NDArray[np.uint8]:
        row: npt.NDArray[np.uint8] = self._host.read_blocks([state.slot], None)[0]
        if state.block_id < 0 or not self._host.block_bytes:
            return row
        return np.concatenate([row, self._host.read_blocks([state.block_id])[0]])

    def fetches(self, request: Request, prefix: Prefix) -> bool:
        """See `Restorer`."""
        fetch, size, tokens = request.fetch, self._pager.block_size, request.answer.tokens
        if fetch.blocks is not None:  # it may have been read since `awaited` saw that it was not
            return not fetch.is_read
        found = self._stored(request, prefix)
        names = [*found.digests, *([found.state] if found.state else [])]
        num_bytes = len(found.digests) * self._host.block_bytes + found.state_bytes
        from_disk = self.tiers.count_in_memory(names) < len(names)
        if not names or not self.tiers.worth(found.end - prefix.num_tokens, num_bytes, from_disk):
            return False
        if not self._may_begin(request):
            return True
        if found.state:
            fetch.blocks = self.tiers.fetch(found.digests, state=found.state, state_bytes=found.state_bytes)
        else:
            rest = tokens[found.end : min(found.end + size, len(tokens) - 1)]  # the last token's logits are wanted
            fetch.blocks = self.tiers.fetch(found.digests, request.hashes.parent(found.end // size), rest)
        fetch.first_block, fetch.state_after = found.first, found.end if found.state else 0
        fetch.blocks.add_done_callback(lambda _: self._wake.set())
        return True

    def _stored(self, request: Request, prefix: Prefix) -> _Stored:
        """What may be fetched to follow a prefix."""
        size, tokens, hashes, states = self._pager.block_size, request.answer.tokens, request.hashes, self._pager.states
        digests = hashes.of(tokens, len(tokens) - 1)
        first = (prefix.num_tokens if states is None else prefix.num_known) // size
        reach = first + self.tiers.count(digests[first:]) if self._host.block_bytes else len(digests)
        if states is None:
            return _Stored(first, digests[first:reach], reach * size)
        end, state, state_bytes = self.tiers.find_state(tokens, hashes, prefix.num_tokens, reach)
        if not self._host.block_bytes:
            return _Stored(0, [], end, state, state_bytes)
        return _Stored(min(first, end // size), digests[first : end // size], end, state, state_bytes)

    def _may_begin(self, request: Request) -> bool:
        """Whether a request's blocks may be read now; if not, its turn comes when another one has begun."""
        self._fetching = [other for other in self._fetching if other.fetch.blocks and not other.answer.is_done]
        if len(self._fetching) >= _MOST_FETCHES:
            return False
        self._fetching.append(request)
        return True

    def awaited(self, request: Request) -> Prefix | None:
        """See `Restorer`."""
        fetch, size, states = request.fetch, self._pager.block_size, self._pager.states
        if fetch.blocks is None or not fetch.blocks.done():
            return None
        fetch.is_read = True
        if fetch.blocks.exception() is not None or (states is not None and fetch.blocks.result().state is None):
            return None
        tokens, hashes = request.answer.tokens, request.hashes
        end = fetch.state_after or fetch.first_block * size + fetch.blocks.result().num_tokens
        found = self._pager.find_blocks(tokens, hashes)
        blocks = found.blocks[: end // size]
        has = found.num_tokens if states is None else self._pager.find_prefix(tokens, hashes).num_tokens
        if len(blocks) < fetch.first_block or has >= end:
            return None  # while it was read, the arena has lost blocks before it, or got more
        return Prefix(len(blocks) * size, blocks, found.version, num_known=end, is_awaited=True)

    def restore(self, request: Request, prefix: Prefix) -> None:
        """See `Restorer`."""
        fetch, seq_id = request.fetch, request.run.seq_id
        blocks, fetch.blocks, fetch.is_read = fetch.blocks, None, False
        if blocks is None or seq_id is None or not prefix.is_awaited:
            return
        try:
            self._restore(blocks.result(), request, seq_id, prefix)
        except BaseException as error:
            self._pager.truncate(seq_id, prefix.num_tokens if self._pager.states is None else 0)
            if not isinstance(error, MlxrError | OSError | RuntimeError | MemoryError):
                raise  # what cannot be brought back is computed

    def _restore(self, fetched: Fetched, request: Request, seq_id: int, prefix: Prefix) -> None:
        host, pager, states = self._host, self._pager, self._pager.states
        first, end = len(prefix.blocks), prefix.num_known
        if end > prefix.num_tokens:
            pager.grow_all([(seq_id, end - prefix.num_tokens)])
        slot = -1 if states is None else states.restore(seq_id, end)
        self.save(pager.take_evicted())
        copies = pager.take_copies()
        assert not copies, "a sequence that ends with a full block needs no copy"
        blocks, rows = pager.blocks_of(seq_id)[first:], fetched.data[first - request.fetch.first_block :]
        if len(rows):
            host.write_blocks(blocks[: len(rows)], rows)
        if fetched.state is not None:
            state, last = np.split(fetched.state, [host.slot_bytes])
            host.write_blocks([slot], state[None], None)
            if last.size:
                host.write_blocks(blocks[-1:], last[None])
        tokens, hashes = request.answer.tokens, request.hashes
        pager.commit(seq_id, tokens, hashes, end)
        if states is not None:
            states.commit(seq_id, tokens, hashes, end)
        self.restored_tokens += end - (prefix.num_tokens if states is None else 0)

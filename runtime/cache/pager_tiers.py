"""What a pager has for the tiers: blocks and states that it gives up, and all that can be found.

A state is of no use without K and V of the tokens before it. Those of full blocks are stored as blocks. If it ends
within a block, it is stored with K and V of that one. So it is stored when it is given up, and also when its block is:
then the block need not be there later.
"""

from collections.abc import Iterable, Sequence

from mlxr.runtime.cache.block_hashes import BlockHashes
from mlxr.runtime.cache.pager_facts import PagerFacts
from mlxr.runtime.cache.prefix_cache import Prefix
from mlxr.runtime.cache.prefix_index import CachedBlock, CachedState
from mlxr.runtime.cache.state_slots import Snapshot


class PagerTiers(PagerFacts):
    """The base of `Pager` that tiers use."""

    def take_evicted(self) -> list[CachedBlock]:
        """The full blocks and the states that were given up since the last call, if `record_evictions`.

        They hold what they held until the next step, its copies, or other writes.
        """
        evicted, self._pool.evicted = self._pool.evicted, []
        full = [block for block in evicted if len(block.tokens) == self.block_size]
        if self.states is None or not (evicted or self.states.slots.evicted):
            return full
        slots = self.states.slots
        states, slots.evicted = dict(slots.evicted), []
        states.update(state for block in evicted for state in slots.ending_in(block))
        return [*full, *self._kept(states.items(), evicted)]

    def cached(self) -> list[CachedBlock]:
        """The full blocks and the states that can be found, each after the block that it follows."""
        blocks = [block for block in self._prefixes.cached_blocks() if len(block.tokens) == self.block_size]
        if self.states is None:
            return blocks
        states = {block.digest: list[CachedState]() for block in blocks}
        others: list[CachedState] = []
        for state in self._kept(self.states.slots.snapshots.items()):
            states.get(state.parent, others).append(state)
        return [item for block in blocks for item in (block, *states[block.digest])] + others

    def find_blocks(self, tokens: Sequence[int], hashes: BlockHashes) -> Prefix:
        """Like `Pager.find_prefix` for whole blocks, whatever states there are."""
        return self._prefixes.find(tokens, hashes, True)

    def _kept(self, states: Iterable[tuple[int, Snapshot]], evicted: Sequence[CachedBlock] = ()) -> list[CachedState]:
        """The names of states, but not of those that end within a block which is neither here nor just evicted."""
        kept = []
        for slot, (digest, rest) in states:
            block_id = self._prefixes.block_with(digest, rest) if rest else -1
            if rest and block_id < 0:
                found = (b.block_id for b in evicted if b.parent == digest and b.tokens[: len(rest)] == rest)
                block_id = next(found, -1)
            if block_id >= 0 or not rest:
                kept.append(CachedState.of(slot, digest, rest, block_id, self.block_size))
        return kept

"""The blocks of the KV arena: the sequences that have them, reference counts, pins, which are free and which idle.

Blocks are taken and given back only by `BlockPool`.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mlxr.runtime.cache.block_hashes import Digest
from mlxr.runtime.cache.prefix_index import CachedBlock, PrefixIndex

FREE, CACHED, USED, SHARED = "f", "c", "u", "s"
"""Nobody has it; only the prefix cache has it; a sequence or a pending copy uses it; several sequences use it."""


@dataclass(slots=True)
class BlockSequence:
    """A sequence: its block table, and how far its K and V are in the arena. Pager and prefix cache change it."""

    row: int
    """Its row of the pager's array of block tables."""
    length: int = 0
    settled: int = 0
    """Leading tokens whose K and V are in the table's blocks once all steps so far have run."""
    blocks: list[int] = field(default_factory=list)

    committed: int = 0
    """Leading tokens whose K and V others may use; if `settled` is less, that many."""
    num_cached: int = 0
    """Leading blocks that are in the prefix index, each under the digest of the one before it."""
    tokens: Sequence[int] = ()
    """Its tokens, of which the first `committed` count; the caller's own list, which may grow."""
    parent: Digest | None = None
    """The digest of its first `num_cached` blocks, since it was last committed; None: not known."""


class BlockPool:
    """Blocks by reference count. A block without references and pins is idle if it is in the prefix index, else free.

    A reference is an occurrence in a block table; a pin keeps a block's content until it has been copied.

    Free blocks are a stack with the lowest block on top. Tables release their blocks from the end, so that the next
    table gets the same blocks in the same order: a single sequence without a prefix index always has the identity
    table.

    Idle blocks are evicted when no block is free, the one first that has been idle for longest. A table that has a
    block has the blocks before it too, and releases them later. So a block is evicted before those that it follows.

    A block that nobody has taken yet may not be in memory yet. It comes after the free ones that are; where memory is
    scarce (`is_frugal`), after the idle ones too.

    Attributes:
        index: what blocks hold that can be found.
        idle: the idle blocks, in the order of eviction.
        record_evictions: whether blocks that are evicted are added to `evicted`.
        is_frugal: whether to evict idle blocks rather than take blocks that are not in memory yet.
        num_taken: blocks that were taken since they were given back, or at all.
        lives: by block: how often what it held was given up.
        version: counts the changes after which a block that was found may hold something else.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.free_blocks = list(range(num_blocks - 1, -1, -1))
        self.references = [0] * num_blocks
        self.pins = [0] * num_blocks
        self.lives = [0] * num_blocks
        self.index = PrefixIndex()
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.record_evictions = self.is_frugal = False
        self.num_taken = 0
        self._was_taken = bytearray(num_blocks)
        self.evicted: list[CachedBlock] = []
        self.version = 0

    @property
    def num_free(self) -> int:
        """Blocks that `take` can still return."""
        return len(self.free_blocks) + len(self.idle)

    def take(self, *, keeps: bool = False) -> int:
        """Gives a free block, or the idle block that is evicted next, one reference; the caller has checked `num_free`.

        An evicted block keeps its content until the next step writes it.

        Args:
            keeps: whether what a free block holds is not given up.
        """
        assert self.num_free, "take() on an empty pool: the caller must check num_free first"
        if self.free_blocks and not (self.is_frugal and self.idle and not self._was_taken[self.free_blocks[-1]]):
            block_id = self.free_blocks.pop()
            if not self._was_taken[block_id]:
                self._was_taken[block_id] = 1
                self.num_taken += 1
            self.lives[block_id] += not keeps
        else:
            block_id, _ = self.idle.popitem(last=False)
            self.forget(block_id)
        self.references[block_id] = 1
        self.version += 1
        return block_id

    def take_several(self, count: int) -> list[int]:
        """`take` so many times, in less time: a prompt takes dozens of blocks."""
        assert count <= self.num_free, "the caller must check num_free first"
        if self.is_frugal:
            return [self.take() for _ in range(count)]
        free, lives, references, was_taken = self.free_blocks, self.lives, self.references, self._was_taken
        taken = free[: len(free) - count - 1 if count < len(free) else None : -1]
        del free[len(free) - len(taken) :]
        for block_id in taken:
            if not was_taken[block_id]:
                was_taken[block_id] = 1
                self.num_taken += 1
        if len(taken) < count:
            given_up = [self.idle.popitem(last=False)[0] for _ in range(count - len(taken))]
            blocks = [self.index.remove(block_id) for block_id in given_up]
            self.evicted += blocks if self.record_evictions else ()
            taken += given_up
        for block_id in taken:
            lives[block_id] += 1
            references[block_id] = 1
        self.version += count
        return taken

    def give_back(self, most: int, *, forgets: bool = True) -> list[int]:
        """Blocks that nobody uses and whose memory can be given back: free ones, then idle ones, which are forgotten.

        They are zero when they are taken again, and come after all other free blocks.

        Args:
            most: how many at most.
            forgets: whether idle ones count.
        """
        given = [block_id for block_id in reversed(self.free_blocks) if self._was_taken[block_id]][:most]
        kept = set(self.free_blocks).difference(given)
        record, self.record_evictions = self.record_evictions, False  # what they hold is gone at once
        while forgets and len(given) < most and self.idle:
            block_id, _ = self.idle.popitem(last=False)
            self.forget(block_id)
            given.append(block_id)
        self.record_evictions = record
        self.free_blocks = sorted(given, reverse=True) + [block_id for block_id in self.free_blocks if block_id in kept]
        for block_id in given:
            self._was_taken[block_id] = 0
        self.num_taken -= len(given)
        self.version += 1
        return given

    def share(self, block_id: int) -> None:
        """Adds a reference to a block that is in use or in the index."""
        assert self.references[block_id] > 0 or block_id in self.index.cached, f"block {block_id} is not in use"
        self.idle.pop(block_id, None)
        self.references[block_id] += 1

    def release(self, block_id: int) -> None:
        """Removes a reference."""
        assert self.references[block_id] > 0, f"block {block_id} is released more often than it was taken"
        self.references[block_id] -= 1
        self._reclaim(block_id)

    def pin(self, block_id: int) -> None:
        """Keeps a block's content, even after its last reference is removed."""
        self.pins[block_id] += 1

    def unpin(self, block_id: int) -> None:
        """Removes a pin."""
        assert self.pins[block_id] > 0, f"block {block_id} is unpinned more often than it was pinned"
        self.pins[block_id] -= 1
        self._reclaim(block_id)

    def forget(self, block_id: int) -> None:
        """Removes a block from the index: the next step will write over what it holds."""
        block = self.index.remove(block_id)
        self.lives[block_id] += 1
        self.version += 1
        if self.record_evictions:
            self.evicted.append(block)

    def replace_idle(self, idle: int, block_id: int) -> None:
        """Has a block stand in the index for an idle one that holds the same, which is free from then on."""
        block = self.index.remove(idle)
        del self.idle[idle]
        self.free_blocks.append(idle)
        self.version += 1
        self.index.add(CachedBlock(block_id, block.digest, block.parent, block.tokens))

    def _reclaim(self, block_id: int) -> None:
        if self.references[block_id] or self.pins[block_id]:
            return
        if block_id in self.index.cached:
            self.idle[block_id] = None
        else:
            self.free_blocks.append(block_id)
            self.version += 1


def give_back(pools: Sequence[BlockPool], sizes: Sequence[int], num_bytes: int) -> list[list[int]]:
    """By pool the blocks whose memory is given back, together so many bytes where there are; idle ones come last.

    Args:
        pools: the pools.
        sizes: by pool: bytes of a block.
        num_bytes: how much is wanted.
    """
    given: list[list[int]] = [[] for _ in pools]
    for forgets in (False, True):
        for pool, size, blocks in zip(pools, sizes, given, strict=True):
            if size and num_bytes > 0:
                found = pool.give_back(-(-num_bytes // size), forgets=forgets)
                num_bytes -= size * len(found)
                blocks.extend(found)
    return given


def block_states(pool: BlockPool, idle: Iterable[int], copied: Iterable[int]) -> str:
    """One letter for each block: `FREE`, `CACHED`, `USED` or `SHARED`.

    Args:
        pool: the blocks.
        idle: blocks that only the prefix cache has.
        copied: sources of pending copies.
    """
    states = [USED if count == 1 else SHARED if count else FREE for count in pool.references]
    for block_id in idle:
        states[block_id] = CACHED
    for block_id in copied:
        if not pool.references[block_id]:
            states[block_id] = USED
    return "".join(states)

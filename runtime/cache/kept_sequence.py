"""The prefix cache of a contiguous arena: the tokens of the sequence that was freed last.

The arena holds one sequence, whose tokens are always in the same slots. So what the last one left behind stays until
the next one writes over it, and the next one takes what both have in common.
"""

from collections.abc import Sequence

from mlxr.runtime.cache.block_hashes import BlockHashes, Digest, block_digest
from mlxr.runtime.cache.blocks import BlockPool, BlockSequence
from mlxr.runtime.cache.prefix_cache import Prefix
from mlxr.runtime.cache.prefix_index import CachedBlock, num_common


class KeptSequence:
    """What `PrefixCache` is for a paged arena.

    Mutable state: the kept tokens, whose K and V are in the arena's first slots, and the blocks that were given up.
    """

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        """Makes an empty cache.

        Args:
            pool: the arena's blocks; a table always gets the lowest ones.
            block_size: tokens of a block.
        """
        self._pool, self._size = pool, block_size
        self._tokens: list[int] = []
        self._hashes: BlockHashes | None = None
        self._running: BlockSequence | None = None

    @property
    def num_idle(self) -> int:
        """Blocks that only the cache uses."""
        return len(self.idle_blocks())

    def idle_blocks(self) -> range:
        """These blocks: a sequence uses the ones before them."""
        return range(self._pool.num_blocks - self._pool.num_free, -(-len(self._tokens) // self._size))

    def cached_blocks(self) -> list[CachedBlock]:
        """The blocks of the kept tokens."""
        return self._blocks_from(0)

    def find(self, tokens: Sequence[int], hashes: BlockHashes, whole_blocks: bool) -> Prefix:
        """See `Pager.find_prefix`."""
        is_kept = self._hashes is not None and self._hashes.root == hashes.root
        count = num_common(self._tokens, tokens[:-1]) if is_kept else 0
        if whole_blocks:
            count -= count % self._size
        return Prefix(count, tuple(range(-(-count // self._size))), self._pool.version)

    def difference(self, tokens: Sequence[int], hashes: BlockHashes) -> tuple[int, int] | None:
        """See `Pager.first_difference`."""
        count = self.find(tokens, hashes, whole_blocks=False).num_tokens
        is_kept = self._hashes is not None and self._hashes.root == hashes.root
        return (count, self._tokens[count]) if is_kept and count < min(len(self._tokens), len(tokens) - 1) else None

    def block_with(self, parent: Digest, tokens: Sequence[int]) -> int:
        """See `PrefixCache.block_with`; of the sequence that runs, if one does."""
        running, hashes, size = self._running, self._hashes, self._size
        known = self._tokens if running is None else running.tokens[: running.committed]
        parents = [] if hashes is None else [hashes.root, *hashes.of(known, len(known))]
        number = parents.index(parent) if parent in parents else -1
        is_there = number >= 0 and tuple(known[number * size :][: len(tokens)]) == tuple(tokens)
        return number if is_there else -1

    def share(self, sequence: BlockSequence, prefix: Prefix) -> None:
        """Gives an empty sequence the kept tokens of a prefix that was found just now; the others are lost."""
        length = prefix.num_tokens
        if self._pool.record_evictions:
            self._pool.evicted += self._blocks_from(length // self._size)
        self._tokens = sequence.tokens = self._tokens[:length]
        whole = length // self._size
        sequence.blocks = [self._pool.take(keeps=i < whole) for i in range(len(prefix.blocks))]
        sequence.length = sequence.settled = sequence.committed = length

    def _blocks_from(self, first: int) -> list[CachedBlock]:
        """The blocks of the kept tokens, from the one of this number on; the last one may be partly filled."""
        hashes, size = self._hashes, self._size
        if hashes is None:
            return []
        num_full = len(hashes.of(self._tokens, len(self._tokens)))
        blocks = []
        for i in range(first, -(-len(self._tokens) // size)):
            parent, tokens = hashes.parent(i), tuple(self._tokens[i * size : (i + 1) * size])
            digest = hashes.parent(i + 1) if i < num_full else block_digest(parent, tokens)
            blocks.append(CachedBlock(i, digest, parent, tokens))
        return blocks

    def commit(self, sequence: BlockSequence, tokens: Sequence[int], hashes: BlockHashes, length: int) -> None:
        """Notes the first `length` tokens; the caller has checked that they are settled."""
        sequence.tokens, sequence.committed, self._hashes = tokens, length, hashes
        self._running = sequence

    def keep_last_block(self, sequence: BlockSequence) -> None:
        """Keeps the tokens of a sequence that will be freed."""
        self._tokens, self._running = list(sequence.tokens[: sequence.committed]), None

    def truncate(self, sequence: BlockSequence, length: int) -> None:
        """Forgets that tokens after the first `length` were committed."""
        sequence.committed = min(sequence.committed, length)

"""The prefix cache of a contiguous arena: the tokens of the sequence that was freed last.

The arena holds one sequence, whose tokens are always in the same slots. So what the last one left behind stays until
the next one writes over it, and the next one takes what both have in common.
"""

from collections.abc import Sequence

from mlxr.runtime.cache.block_hashes import BlockHashes
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

    @property
    def num_idle(self) -> int:
        """Blocks that only the cache uses."""
        return len(self.idle_blocks())

    def idle_blocks(self) -> range:
        """These blocks: a sequence uses the ones before them."""
        return range(self._pool.num_blocks - self._pool.num_free, -(-len(self._tokens) // self._size))

    def cached_blocks(self) -> list[CachedBlock]:
        """The full blocks of the kept tokens."""
        return self._blocks_from(0)

    def find(self, tokens: Sequence[int], hashes: BlockHashes, whole_blocks: bool) -> Prefix:
        """See `Pager.find_prefix`."""
        is_kept = self._hashes is not None and self._hashes.root == hashes.root
        count = num_common(self._tokens, tokens[:-1]) if is_kept else 0
        if whole_blocks:
            count -= count % self._size
        return Prefix(count, tuple(range(-(-count // self._size))), self._pool.version)

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
        """The full blocks of the kept tokens, from the one of this number on."""
        hashes, size = self._hashes, self._size
        if hashes is None:
            return []
        digests = hashes.of(self._tokens, len(self._tokens))
        return [
            CachedBlock(i, digests[i], hashes.parent(i), tuple(self._tokens[i * size : (i + 1) * size]))
            for i in range(first, len(digests))
        ]

    def commit(self, sequence: BlockSequence, tokens: Sequence[int], hashes: BlockHashes, length: int) -> None:
        """Notes the first `length` tokens; the caller has checked that they are settled."""
        sequence.tokens, sequence.committed, self._hashes = tokens, length, hashes

    def keep_last_block(self, sequence: BlockSequence) -> None:
        """Keeps the tokens of a sequence that will be freed."""
        self._tokens = list(sequence.tokens[: sequence.committed])

    def truncate(self, sequence: BlockSequence, length: int) -> None:
        """Forgets that tokens after the first `length` were committed."""
        sequence.committed = min(sequence.committed, length)

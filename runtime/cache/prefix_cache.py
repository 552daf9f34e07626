"""The prefix cache of a paged arena: sequences share the blocks of what they have in common at their start.

A block is findable from the moment its tokens are committed, and after its sequence is freed, until it is evicted:

* A full block is in the index of the pool. Two sequences may compute the same block. When the second one commits while
  the first one still runs, it takes that one's block into its table and gives its own back. So a table that has a
  cached block has the cached blocks before it too; blocks are evicted by the time of their release alone, and the end
  of a prefix goes first. Where nobody uses the first one's block any more, it is the one that goes: the same numbers,
  rounded otherwise in other steps, shall not come into a running sequence at a moment that depends on the clock.
* The last block of a sequence, which is partly filled, is found through the sequence, whose list of tokens grows by
  itself. So a commit costs nothing until a block is full. When the sequence is freed, this block goes to the index.

A hit may end within a block. Such a block is copied when one of those that share it grows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mlxr.runtime.cache.block_hashes import BlockHashes, Digest, block_digest
from mlxr.runtime.cache.blocks import BlockPool, BlockSequence
from mlxr.runtime.cache.prefix_index import CachedBlock, num_common


@dataclass(frozen=True)
class Prefix:
    """Tokens of a prompt whose K and V are in the arena, as long as the pager does not change."""

    num_tokens: int
    blocks: tuple[int, ...]
    """Full blocks, then perhaps one of which the first tokens are used."""
    version: int = field(default=-1, compare=False)
    """`BlockPool.version` when it was found."""
    state_slot: int = -1
    """Of a model with states: the slot of the state after these tokens; -1: there are no tokens."""
    num_known: int = 0
    """Tokens that need not be computed, or of a model with states those whose K and V are in the arena.

    Those after `num_tokens` are awaited (`is_awaited`), or there is no state of them.
    """
    others: tuple[tuple[int, ...], ...] = ()
    """Of each group of layers after the first: the blocks that the next query reads, in order."""
    is_awaited: bool = False
    """Whether what follows, up to `num_known` tokens, was read from a tier and is written into a new sequence first."""


class PrefixCache:
    """Finds, shares and registers blocks of the pool.

    Mutable state: the pool's index, and the sequences with a last block that can be found.
    """

    def __init__(self, pool: BlockPool, block_size: int, tables: npt.NDArray[np.int32]) -> None:
        """Makes an empty cache.

        Args:
            pool: the arena's blocks.
            block_size: tokens of a block.
            tables: the pager's block tables, [max_sequences, max_blocks].
        """
        self._pool, self._size, self._tables = pool, block_size, tables
        self.open_sequences: dict[Digest, list[BlockSequence]] = {}
        """Sequences in use, by the digest before their last block."""

    @property
    def num_idle(self) -> int:
        """Blocks that only the cache uses."""
        return len(self._pool.idle)

    def idle_blocks(self) -> list[int]:
        """These blocks, in the order of eviction."""
        return list(self._pool.idle)

    def cached_blocks(self) -> list[CachedBlock]:
        """The blocks in the index, each after the one that it follows."""
        cached, block_of = self._pool.index.cached, self._pool.index.block_of
        ordered: dict[int, CachedBlock] = {}
        for last in cached.values():
            block, chain = last, list[CachedBlock]()
            while block.block_id not in ordered:
                chain.append(block)
                if (parent := block_of.get(block.parent)) is None:
                    break
                block = cached[parent]
            ordered |= {link.block_id: link for link in reversed(chain)}
        return list(ordered.values())

    def find(self, tokens: Sequence[int], hashes: BlockHashes, whole_blocks: bool) -> Prefix:
        """See `Pager.find_prefix`."""
        most = max(len(tokens) - 1, 0)
        block_of, blocks = self._pool.index.block_of, list[int]()
        is_there, count = True, 1
        while is_there and len(blocks) < most // self._size:  # digests of what is not there can wait
            for digest in hashes.of(tokens, min(most, count * self._size))[len(blocks) :]:
                block_id = block_of.get(digest)
                if block_id is None:
                    is_there = False
                    break
                blocks.append(block_id)
            count *= 4
        length = len(blocks) * self._size
        if not whole_blocks and length < most:
            rest = tokens[length : min(most, length + self._size)]
            count, block_id = self._longest(hashes.parent(len(blocks)), rest)
            if count:
                blocks.append(block_id)
                length += count
        return Prefix(length, tuple(blocks), self._pool.version)

    def difference(self, tokens: Sequence[int], hashes: BlockHashes) -> tuple[int, int] | None:
        """See `Pager.first_difference`."""
        length = self.find(tokens, hashes, whole_blocks=False).num_tokens
        if length >= len(tokens) - 1:
            return None
        parent, rest = hashes.parent(length // self._size), tokens[length - length % self._size : length]
        there = self._pool.index.one_after(parent, rest)
        for sequence in self.open_sequences.get(parent, ()) if there is None else ():
            others = self._open_tokens(sequence)
            if len(others) > len(rest) == num_common(others, rest):
                there = others[len(rest)]
        return None if there is None else (length, there)

    def block_with(self, parent: Digest, tokens: Sequence[int]) -> int:
        """The block that begins with some tokens after a parent; -1: there is none."""
        count, block_id = self._longest(parent, tokens)
        return block_id if count == len(tokens) else -1

    def share(self, sequence: BlockSequence, prefix: Prefix) -> None:
        """Gives an empty sequence the blocks of a prefix that was found just now."""
        for block_id in prefix.blocks:
            self._pool.share(block_id)
        sequence.blocks = list(prefix.blocks)
        sequence.length = sequence.settled = prefix.num_tokens
        sequence.num_cached = prefix.num_tokens // self._size
        sequence.committed = sequence.num_cached * self._size

    def commit(self, sequence: BlockSequence, tokens: Sequence[int], hashes: BlockHashes, length: int) -> None:
        """Makes the first `length` tokens findable; the caller has checked that they are settled."""
        sequence.tokens, sequence.committed = tokens, length
        if sequence.parent is not None and length < (sequence.num_cached + 1) * self._size:
            return
        self.close(sequence)
        index, blocks, size, first = self._pool.index, sequence.blocks, self._size, sequence.num_cached
        digests, parent = hashes.after(first, tokens, length // size), hashes.parent(first)
        for i, digest in enumerate(digests, first):
            own = blocks[i]
            if digest in index.block_of or own in index.cached:
                if not self._register(sequence, digest, hashes):
                    return
            else:  # as nearly each block of a prompt
                index.add(CachedBlock(own, digest, parent, tuple(tokens[i * size : (i + 1) * size])))
                sequence.num_cached = i + 1
            parent = digest
        sequence.parent = parent
        if (siblings := self.open_sequences.get(parent)) is None:
            self.open_sequences[parent] = [sequence]
        else:
            siblings.append(sequence)

    def keep_last_block(self, sequence: BlockSequence) -> None:
        """Adds the partly filled last block of a committed sequence, which will be freed, to the index."""
        tokens = self._open_tokens(sequence)
        if sequence.parent is None or not tokens:
            return
        index, block_id = self._pool.index, sequence.blocks[sequence.num_cached]
        if index.longest(sequence.parent, tokens)[0] == len(tokens):
            return  # here or elsewhere, it can be found already
        if block_id in index.cached:
            index.remove(block_id)
        digest = block_digest(sequence.parent, tokens)
        index.add(CachedBlock(block_id, digest, sequence.parent, tuple(tokens)))

    def close(self, sequence: BlockSequence) -> None:
        """Makes the last block of a sequence impossible to find through it."""
        if sequence.parent is not None:
            siblings = self.open_sequences[sequence.parent]
            siblings.remove(sequence)
            if not siblings:
                del self.open_sequences[sequence.parent]
            sequence.parent = None

    def truncate(self, sequence: BlockSequence, length: int) -> None:
        """Forgets that tokens after the first `length`, and those of a partly filled last block, were committed."""
        if length < sequence.committed:
            self.close(sequence)
            self._pool.version += 1
            sequence.num_cached = min(sequence.num_cached, length // self._size)
            sequence.committed = sequence.num_cached * self._size

    def _register(self, sequence: BlockSequence, digest: Digest, hashes: BlockHashes) -> bool:
        """Puts the sequence's next full block into the index, or the index's block of this content into its table.

        Returns False if it can do neither: the content is there, and a fork shares the sequence's own block. The fork
        could keep the cached blocks that follow while nobody has the one before them.
        """
        pool, i = self._pool, sequence.num_cached
        own, known = sequence.blocks[i], pool.index.block_of.get(digest)
        if known != own:
            if known is not None and pool.references[own] > 1:
                return False
            if own in pool.index.cached:  # when it was partly filled
                pool.index.remove(own)
            if known is None:
                tokens = tuple(sequence.tokens[i * self._size : (i + 1) * self._size])
                pool.index.add(CachedBlock(own, digest, hashes.parent(i), tokens))
            elif known in pool.idle:
                pool.replace_idle(known, own)
            else:
                pool.share(known)
                sequence.blocks[i] = self._tables[sequence.row, i] = known
                pool.release(own)
        sequence.num_cached += 1
        return True

    def _longest(self, parent: Digest, tokens: Sequence[int]) -> tuple[int, int]:
        """How many of the tokens a block under the parent begins with, at most, and the block."""
        best = self._pool.index.longest(parent, tokens)
        for sequence in self.open_sequences.get(parent, ()):
            count = num_common(self._open_tokens(sequence), tokens)
            if count > best[0]:
                best = count, sequence.blocks[sequence.num_cached]
        return best

    def _open_tokens(self, sequence: BlockSequence) -> Sequence[int]:
        """The committed tokens of a sequence's last block that are in it."""
        start = sequence.num_cached * self._size
        return sequence.tokens[start : min(sequence.committed, sequence.settled)]

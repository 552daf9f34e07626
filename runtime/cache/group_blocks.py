"""Blocks of a further group of layers: those that see a window of tokens, or keep other rows than the first group's.

The pager's own blocks are those of the first group, which keeps every token. A further group has blocks, tables and an
index of its own, and follows what the pager does with a sequence. Of a group with a window, a sequence holds the blocks
that its next queries may read; older ones are released when it grows, and their entries of the table become 0, which no
kernel reads. What a sequence may go back to without them is `MOST_TAKEN_BACK` tokens before its newest step.

Only full blocks can be found, by the same digests as the first group's. A prefix needs those that the query after it
reads: `find` goes back to the last length for which they are all there.

In a contiguous arena block i of the only sequence is block i of each group. So what the first group still has of the
sequence before, all groups have, and there is no index: the lowest blocks are always the next ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mlxr.compiler.artifact import MOST_TAKEN_BACK, LayerGroup
from mlxr.compiler.errors import ArenaError
from mlxr.runtime.cache.block_copies import BlockCopies
from mlxr.runtime.cache.block_hashes import BlockHashes, Digest
from mlxr.runtime.cache.blocks import BlockPool, block_states
from mlxr.runtime.cache.integrity import equal
from mlxr.runtime.cache.prefix_index import CachedBlock


@dataclass(slots=True)
class _Held:
    """The blocks of one sequence."""

    row: int
    first: int = 0
    """The number of the first block that is held: of the tokens from `first * block_size` on."""
    blocks: list[int] = field(default_factory=list)
    num_cached: int = 0
    """Blocks from the sequence's start that are in the index, or were when they were released."""

    @property
    def end(self) -> int:
        """The number of the block after the last one."""
        return self.first + len(self.blocks)


class GroupBlocks:
    """Block tables of all sequences over the blocks of one group. Only bookkeeping; the pager calls it."""

    def __init__(self, group: LayerGroup, block_size: int, max_sequences: int, *, contiguous: bool = False) -> None:
        """Makes it with all blocks free."""
        assert not contiguous or group.window is None, "a contiguous arena keeps all tokens"
        self.group, self._size, self._contiguous = group, block_size, contiguous
        self.pool = BlockPool(group.num_blocks)
        self.tables = np.zeros((max_sequences, group.max_blocks_per_sequence), np.int32)
        self._copies = BlockCopies(self.pool)
        self._held: dict[int, _Held] = {}

    @property
    def num_used(self) -> int:
        """Blocks that sequences or pending copies use."""
        return self.pool.num_blocks - self.pool.num_free

    def block_states(self) -> str:
        """The state of each block; see `blocks.block_states`."""
        return block_states(self.pool, self.pool.idle, self._copies.source_of.values())

    def held(self, seq_id: int) -> tuple[int, tuple[int, ...]]:
        """The blocks that a sequence holds, in token order, after the number of the first one."""
        held = self._held[seq_id]
        return held.first, tuple(held.blocks)

    def add(self, seq_id: int, row: int, length: int = 0, blocks: Sequence[int] = ()) -> None:
        """Adds a sequence that begins with blocks that `find` gave for so many tokens, a multiple of the block size."""
        end = -(-length // self._size)
        held = _Held(row, end - len(blocks), list(blocks), end)
        for block_id in blocks:
            if self._contiguous:
                taken = self.pool.take()
                assert taken == block_id, f"block {taken} is the next one, not {block_id}"
            else:
                self.pool.share(block_id)
        self.tables[row, held.first : end] = blocks
        self._held[seq_id] = held

    def fork(self, seq_id: int, fork_id: int, row: int) -> None:
        """Adds a sequence with the same blocks as another."""
        parent = self._held[seq_id]
        for block_id in parent.blocks:
            self.pool.share(block_id)
        self.tables[row] = self.tables[parent.row]
        self._held[fork_id] = _Held(row, parent.first, list(parent.blocks), parent.num_cached)

    def find(self, digests: Sequence[Digest], count: int) -> int:
        """The most leading blocks, up to `count`, after which all blocks can be found that the next query reads."""
        block_of = self.pool.index.block_of
        while count and not self._contiguous:
            needed = range(self._first_of(count * self._size), count)
            missing = next((number for number in reversed(needed) if digests[number] not in block_of), None)
            if missing is None:
                return count
            count = missing
        return count

    def blocks_after(self, digests: Sequence[Digest], count: int) -> tuple[int, ...]:
        """The blocks that a sequence of `count` blocks begins with, where `find` gave this number."""
        numbers = range(self._first_of(count * self._size), count)
        if self._contiguous:
            return tuple(numbers)
        return tuple(self.pool.index.block_of[digests[number]] for number in numbers)

    def blocks_needed(self, growths: Iterable[tuple[int, int, int]]) -> int:
        """How many free blocks `grow` takes at most: (sequence id, its length, new tokens) of each."""
        needed = 0
        for seq_id, length, num_tokens in growths:
            held = self._held[seq_id]
            released = max(0, min(self._kept_from(length), held.end) - held.first)
            alone = sum(self.pool.references[block_id] == 1 for block_id in held.blocks[:released])
            copied = length % self._size > 0 and self._is_shared(held.blocks[-1], length % self._size)
            needed += -(-(length + num_tokens) // self._size) - held.end + copied - alone
        return needed

    def grows_plainly(self, seq_ids: Iterable[int], length_of: Iterable[int], count: int) -> bool:
        """Whether `grow` by so many tokens each needs no copy, and there are blocks enough whatever is released."""
        spare = self.pool.num_free
        for seq_id, length in zip(seq_ids, length_of, strict=True):
            offset = length % self._size
            if offset and self._is_shared(self._held[seq_id].blocks[-1], offset):
                return False
            spare -= -(-(offset + count) // self._size) - (offset > 0)
        return spare >= 0

    def grow(self, seq_id: int, length: int, num_tokens: int) -> None:
        """Gives a sequence of this length blocks for more tokens; what its next queries do not read is released."""
        held, size = self._held[seq_id], self._size
        while held.blocks and held.first < self._kept_from(length):
            self.tables[held.row, held.first] = 0
            self._copies.release(held.blocks.pop(0))
            held.first += 1
        if not held.blocks:
            held.first = length // size
        if (offset := length % size) and self._is_shared(held.blocks[-1], offset):
            last = held.blocks[-1]
            if self.pool.references[last] > 1 or self.pool.num_free:
                held.blocks[-1] = self.tables[held.row, held.end - 1] = self._copies.add(last)
            else:
                self.pool.forget(last)
        while held.end * size < length + num_tokens:
            self.tables[held.row, held.end] = block_id = self.pool.take()
            held.blocks.append(block_id)

    def commit(self, seq_id: int, digests: Sequence[Digest], tokens: Sequence[int], hashes: BlockHashes) -> None:
        """Makes full blocks findable: those of the digests, of the sequence's first blocks, that it holds."""
        if self._contiguous:
            return
        held, pool = self._held[seq_id], self.pool
        for number in range(max(held.num_cached, held.first), min(len(digests), held.end)):
            place, digest = number - held.first, digests[number]
            own, known = held.blocks[place], pool.index.block_of.get(digest)
            if known == own or (known is not None and pool.references[own] > 1):
                continue
            if own in pool.index.cached:
                pool.index.remove(own)
            if known is None:
                part = tuple(tokens[number * self._size : (number + 1) * self._size])
                pool.index.add(CachedBlock(own, digest, hashes.parent(number), part))
            elif known in pool.idle:
                pool.replace_idle(known, own)
            else:
                pool.share(known)
                held.blocks[place] = self.tables[held.row, number] = known
                self._copies.release(own)
        held.num_cached = max(held.num_cached, len(digests))

    def goes_back(self, seq_id: int, length: int) -> bool:
        """Whether a sequence can be truncated to so many tokens: it holds what the query after them reads."""
        return not length or self._held[seq_id].first <= self._first_of(length)

    def truncate(self, seq_id: int, length: int) -> None:
        """Keeps the blocks of the first `length` tokens.

        Raises:
            ArenaError: blocks were released that the query after these tokens reads; nothing has changed.
        """
        held = self._held[seq_id]
        if not self.goes_back(seq_id, length):
            raise ArenaError(
                f"sequence {seq_id} cannot go back to {length} tokens: its window of {self.group.window} tokens "
                f"gave back what comes before token {held.first * self._size}"
            )
        while held.end > -(-length // self._size) and held.blocks:
            self.tables[held.row, held.end - 1] = 0
            self._copies.release(held.blocks.pop())
        if not length:
            held.first = 0
        held.num_cached = min(held.num_cached, length // self._size)

    def remove(self, seq_id: int) -> None:
        """Forgets a sequence without tokens."""
        assert not self._held.pop(seq_id).blocks, "it has no tokens"

    def take_copies(self) -> list[tuple[int, int]]:
        """The copies that the next step makes first, as (source, destination); they are no longer pending."""
        return self._copies.take()

    def check_integrity(self, lengths: dict[int, int]) -> None:
        """Checks every invariant; `lengths` are the tokens of each sequence.

        Raises:
            ArenaError: one does not hold; the message is the failed equation.
        """
        uses = [0] * self.pool.num_blocks
        equal("sequences of a group", sorted(self._held), "those of the pager", sorted(lengths))
        for seq_id, held in self._held.items():
            who = f"sequence {seq_id} in a group: "
            row = [0] * held.first + held.blocks
            row += [0] * (self.tables.shape[1] - len(row))
            equal(who + "block table", self.tables[held.row].tolist(), "blocks", row)
            length = lengths[seq_id]
            equal(who + "end", held.end, "blocks of its tokens", -(-length // self._size))
            equal(who + "holds what it reads", self.goes_back(seq_id, length), "expected", True)
            for block_id in held.blocks:
                uses[block_id] += 1
        equal("references of a group's blocks", self.pool.references, "uses", uses)
        unused = [i for i in range(self.pool.num_blocks) if not uses[i] and not self.pool.pins[i]]
        equal("free and idle blocks of a group", sorted([*self.pool.free_blocks, *self.pool.idle]), "unused", unused)

    def _first_of(self, length: int) -> int:
        """The number of the first block that the query after so many tokens may read."""
        return self.group.first_read(length) // self._size

    def _kept_from(self, length: int) -> int:
        """The number of the first block that a sequence of so many tokens keeps when it grows."""
        return self.group.first_read(max(0, length - MOST_TAKEN_BACK)) // self._size

    def _is_shared(self, block_id: int, offset: int) -> bool:
        """Whether others read a block that is used up to an offset, or may find more in it."""
        cached = self.pool.index.cached
        return self.pool.references[block_id] > 1 or (block_id in cached and len(cached[block_id].tokens) > offset)

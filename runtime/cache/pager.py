"""The pager: which arena blocks hold which tokens of which sequence. Only bookkeeping; not thread-safe.

A sequence is a length and a block table; token i is in slot `table[i // block_size] * block_size + i % block_size`.
Forks share blocks, which have reference counts. A shared block is never written: before a sequence appends to a shared,
partly filled last block, it gets its own copy of that block (copy-on-write).

One step of the engine does this, in this order:

1. `append_all` (through `Batch.build`): block tables grow, and each new token gets a slot;
2. `take_copies`: the host copies these blocks, in any order, before any kernel of the step;
3. the step runs and writes K and V of every appended token into its slot.

A sequence is *settled* when all its tokens are in the blocks of its own table. It is settled by `take_copies`, until it
grows again. Only a settled sequence can be forked. So copies are independent: no block is both source and destination.

`check_integrity` states the invariants.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import ArenaGeometry
from mlxr.compiler.errors import ArenaError, ArenaFullError
from mlxr.runtime.cache.blocks import BlockPool


@dataclass
class _Sequence:
    length: int = 0
    settled: int = 0
    """Leading tokens whose K and V are in the table's blocks once all steps so far have run."""
    blocks: list[int] = field(default_factory=list)
    row: npt.NDArray[np.int32] | None = field(default=None, compare=False)
    """Its row of `Pager.block_tables`, reused until `blocks` changes, which is less often than every step."""


class Pager:
    """Block tables of all sequences over one `BlockPool`.

    Sequence ids count up and are never reused, so a stale id is always an error.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_blocks_per_sequence: int,
        max_sequences: int,
        *,
        contiguous: bool = False,
        context: int | None = None,
    ) -> None:
        """Makes a pager with all blocks free.

        Args:
            num_blocks: blocks of the arena.
            block_size: tokens of a block.
            max_blocks_per_sequence: length of the longest block table.
            max_sequences: most sequences at once; 1 when contiguous.
            contiguous: whether block i of the only sequence is arena block i, as kernels without a block table assume.
            context: most tokens of a sequence; None: as many as the longest table has room for.

        Raises:
            ArenaError: a size below 1, a context beyond the longest table, or several contiguous sequences.
        """
        capacity = max_blocks_per_sequence * block_size
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_blocks_per_sequence = max_blocks_per_sequence
        self.max_sequences = max_sequences
        self.contiguous = contiguous
        self.context = capacity if context is None else context
        for name in ("num_blocks", "block_size", "max_blocks_per_sequence", "max_sequences", "context"):
            if getattr(self, name) < 1:
                raise ArenaError(f"{name} is {getattr(self, name)}, expected at least 1")
        if self.context > capacity:
            raise ArenaError(
                f"context {self.context} exceeds the longest block table: "
                f"{max_blocks_per_sequence} blocks x {block_size} tokens = {capacity}"
            )
        if contiguous and max_sequences != 1:
            raise ArenaError(f"a contiguous arena holds 1 sequence, got max_sequences {max_sequences}; use mode paged")
        self._pool = BlockPool(num_blocks)
        self._sequences: dict[int, _Sequence] = {}
        self._next_id = 0
        self._copies: dict[int, int] = {}
        """Pending copies: the source of each destination. Sources are pinned."""

    @classmethod
    def from_geometry(cls, geometry: ArenaGeometry) -> "Pager":
        """The pager of a plan's arena."""
        return cls(
            geometry.num_blocks,
            geometry.block_size,
            geometry.max_blocks_per_sequence,
            geometry.max_sequences,
            contiguous=geometry.mode == "contiguous",
            context=geometry.context,
        )

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no sequence and no pending copy uses."""
        return self._pool.num_free

    @property
    def num_sequences(self) -> int:
        """Sequences in the arena now."""
        return len(self._sequences)

    def length(self, seq_id: int) -> int:
        """Tokens of a sequence."""
        return self._get(seq_id).length

    def block_table(self, seq_id: int) -> tuple[int, ...]:
        """Blocks of a sequence in token order: ceil(length / block_size) of them."""
        return tuple(self._get(seq_id).blocks)

    def block_tables(self, seq_ids: Sequence[int]) -> npt.NDArray[np.int32]:
        """Blocks of several sequences: [sequences, max_blocks_per_sequence], int32; unused entries are 0."""
        return np.stack([self._row(self._get(seq_id)) for seq_id in seq_ids])

    def _row(self, sequence: _Sequence) -> npt.NDArray[np.int32]:
        if sequence.row is None:
            sequence.row = np.zeros(self.max_blocks_per_sequence, dtype=np.int32)
            sequence.row[: len(sequence.blocks)] = sequence.blocks
        return sequence.row

    def can_add_sequence(self) -> bool:
        """Whether `add_sequence` would succeed."""
        return len(self._sequences) < self.max_sequences

    def add_sequence(self) -> int:
        """Adds an empty sequence and returns its id.

        Raises:
            ArenaError: there are `max_sequences` already.
        """
        if not self.can_add_sequence():
            raise ArenaError(
                f"the arena holds {len(self._sequences)} of {self.max_sequences} sequences; "
                "free one, or compile the spec with a larger cache.max_sequences"
            )
        seq_id = self._next_id
        self._next_id += 1
        self._sequences[seq_id] = _Sequence()
        return seq_id

    def can_append(self, seq_id: int, num_tokens: int) -> bool:
        """Whether `append` would succeed now.

        Raises:
            ArenaError: unknown sequence.
        """
        return self.can_append_all([(seq_id, num_tokens)])

    def append(self, seq_id: int, num_tokens: int) -> list[int]:
        """Grows one sequence; see `append_all`."""
        return self.append_all([(seq_id, num_tokens)])[0]

    def can_append_all(self, growths: Sequence[tuple[int, int]]) -> bool:
        """Whether `append_all` would succeed now.

        Raises:
            ArenaError: unknown sequence.
        """
        for seq_id, _ in growths:
            self._get(seq_id)
        try:
            return self._num_blocks_needed(growths) <= self._pool.num_free
        except ArenaError:
            return False

    def append_all(self, growths: Sequence[tuple[int, int]]) -> list[list[int]]:
        """Grows several sequences, all or none, and returns the slot of every new token.

        Args:
            growths: (sequence id, number of new tokens >= 1), each sequence at most once.

        Raises:
            ArenaFullError: not enough free blocks; nothing has changed.
            ArenaError: unknown or repeated sequence, no tokens, or a sequence beyond the context; nothing has changed.
        """
        needed = self._num_blocks_needed(growths)
        if needed > self._pool.num_free:
            raise ArenaFullError(
                f"appending {sum(n for _, n in growths)} tokens to {len(growths)} sequence(s) needs {needed} blocks of "
                f"{self.block_size} tokens, {self._pool.num_free} of {self.num_blocks} are free; free or truncate a "
                "sequence, or compile the spec with a larger cache.num_blocks or cache.memory_budget"
            )
        return [self._grow(self._sequences[seq_id], num_tokens) for seq_id, num_tokens in growths]

    def can_fork(self, seq_id: int) -> bool:
        """Whether `fork` would succeed now.

        Raises:
            ArenaError: unknown sequence.
        """
        sequence = self._get(seq_id)
        return not self.contiguous and sequence.settled == sequence.length and self.can_add_sequence()

    def fork(self, seq_id: int) -> int:
        """Adds a sequence with the same tokens in the same blocks, and returns its id.

        Raises:
            ArenaError: unknown or unsettled sequence, contiguous arena, or there are `max_sequences` already.
        """
        sequence = self._get(seq_id)
        if self.contiguous:
            raise ArenaError("a contiguous arena holds 1 sequence and cannot fork it; compile with cache.mode: paged")
        if sequence.settled != sequence.length:
            raise ArenaError(
                f"sequence {seq_id} has {sequence.length} tokens, of which {sequence.settled} are in its blocks; "
                "fork it before it grows, or after take_copies() and the step that writes them"
            )
        fork_id = self.add_sequence()
        for block_id in sequence.blocks:
            self._pool.share(block_id)
        self._sequences[fork_id] = _Sequence(sequence.length, sequence.settled, list(sequence.blocks))
        return fork_id

    def take_copies(self) -> list[tuple[int, int]]:
        """Returns the pending block copies, as (source, destination), and settles every sequence.

        The caller must copy these blocks, K and V in all layers, and then run the step. No block is both source and
        destination, and destinations are distinct, so the order does not matter.
        """
        copies = [(source, destination) for destination, source in self._copies.items()]
        self._copies.clear()
        for source, _ in copies:
            self._pool.unpin(source)
        for sequence in self._sequences.values():
            sequence.settled = sequence.length
        return copies

    def truncate(self, seq_id: int, length: int) -> None:
        """Keeps the first `length` tokens and releases the blocks after them.

        Raises:
            ArenaError: unknown sequence, or a length that is negative or beyond the sequence.
        """
        sequence = self._get(seq_id)
        if not 0 <= length <= sequence.length:
            raise ArenaError(f"cannot truncate sequence {seq_id} to {length}, expected 0 to {sequence.length} tokens")
        for _ in range(len(sequence.blocks) - self._num_blocks_of(length)):
            self._release(sequence.blocks.pop())
            sequence.row = None
        sequence.length = length
        sequence.settled = min(sequence.settled, length)

    def free(self, seq_id: int) -> None:
        """Forgets a sequence and releases its blocks.

        Raises:
            ArenaError: unknown sequence.
        """
        self.truncate(seq_id, 0)
        del self._sequences[seq_id]

    def check_integrity(self) -> None:
        """Checks every invariant of the pager.

        Raises:
            ArenaError: one does not hold; the message is the failed equation.
        """
        pool = self._pool
        occurrences = Counter(block_id for sequence in self._sequences.values() for block_id in sequence.blocks)
        sources = Counter(self._copies.values())
        for block_id in range(self.num_blocks):
            _equal(f"references of block {block_id}", pool.references[block_id], "in tables", occurrences[block_id])
            _equal(f"pins of block {block_id}", pool.pins[block_id], "copies from it", sources[block_id])
        free, used = set(pool.free_blocks), set(occurrences) | set(sources)
        _equal("length of the free list", len(pool.free_blocks), "distinct blocks in it", len(free))
        _equal("blocks free and used", free & used, "none", set())
        _equal("blocks neither free nor used", set(range(self.num_blocks)) - free - used, "none", set())
        _equal("blocks out of range", (free | used) - set(range(self.num_blocks)), "none", set())
        for seq_id, sequence in self._sequences.items():
            self._check_sequence(f"sequence {seq_id}: ", sequence)
        _equal("copy sources that are destinations", set(sources) & set(self._copies), "none", set())
        for block_id in self._copies:
            _equal(f"references of copy destination {block_id}", pool.references[block_id], "1", 1)
        _ascending("number of sequences <= max_sequences", len(self._sequences), self.max_sequences)

    def _check_sequence(self, who: str, sequence: _Sequence) -> None:
        blocks, length, settled = sequence.blocks, sequence.length, sequence.settled
        _equal(who + "blocks in the table", len(blocks), "distinct ones", len(set(blocks)))
        _equal(who + "blocks in the table", len(blocks), "ceil(length / block_size)", self._num_blocks_of(length))
        _ascending(who + "0 <= settled <= length <= context", 0, settled, length, self.context)
        _ascending(who + "blocks in the table <= max_blocks_per_sequence", len(blocks), self.max_blocks_per_sequence)
        if sequence.row is not None:
            unused = [0] * (self.max_blocks_per_sequence - len(blocks))
            _equal(who + "row of block tables", sequence.row.tolist(), "blocks", [*blocks, *unused])
        if self.contiguous:
            _equal(who + "contiguous table", blocks, "identity", list(range(len(blocks))))
        if settled < length:  # the coming step writes these blocks
            for block_id in blocks[settled // self.block_size :]:
                _equal(f"{who}references of written block {block_id}", self._pool.references[block_id], "1", 1)

    def _get(self, seq_id: int) -> _Sequence:
        try:
            return self._sequences[seq_id]
        except KeyError:
            known = ", ".join(map(str, self._sequences)) or "none"
            raise ArenaError(f"unknown sequence {seq_id}, the arena holds: {known}") from None

    def _num_blocks_of(self, length: int) -> int:
        return -(-length // self.block_size)

    def _num_blocks_needed(self, growths: Sequence[tuple[int, int]]) -> int:
        needed, size, references = 0, self.block_size, self._pool.references  # local: every step calls this twice
        left: Counter[int] = Counter()  # references that earlier sequences of this call will have released
        seen: set[int] = set()
        for seq_id, num_tokens in growths:
            sequence = self._sequences.get(seq_id) or self._get(seq_id)
            if num_tokens < 1 or seq_id in seen:
                what = f"{num_tokens} tokens" if num_tokens < 1 else "tokens twice"
                raise ArenaError(f"cannot append {what} to sequence {seq_id}, expected at least 1 token, and once")
            seen.add(seq_id)
            if sequence.length + num_tokens > self.context:
                raise ArenaError(
                    f"sequence {seq_id} has {sequence.length} tokens, {num_tokens} more exceed the context of "
                    f"{self.context}; truncate it, or compile the spec with a larger model.context"
                )
            needed -= (-sequence.length - num_tokens) // size + len(sequence.blocks)
            last = sequence.blocks[-1] if sequence.length % size else None
            if last is not None and references[last] > 1 and references[last] - left[last] > 1:
                needed += 1
                left[last] += 1
        return needed

    def _grow(self, sequence: _Sequence, num_tokens: int) -> list[int]:
        size = self.block_size
        if sequence.length % size and self._pool.references[sequence.blocks[-1]] > 1:
            self._own_last_block(sequence)
        start, sequence.length = sequence.length, sequence.length + num_tokens
        while len(sequence.blocks) * size < sequence.length:
            sequence.blocks.append(self._pool.take())
            sequence.row = None
        slots: list[int] = []
        for i in range(start // size, len(sequence.blocks)):
            first = sequence.blocks[i] * size
            slots += range(first + max(0, start - i * size), first + min(size, sequence.length - i * size))
        return slots

    def _own_last_block(self, sequence: _Sequence) -> None:
        source = sequence.blocks[-1]
        destination = self._pool.take()
        self._pool.pin(source)
        self._pool.release(source)
        self._copies[destination] = source
        sequence.blocks[-1] = destination
        sequence.row = None
        sequence.settled = sequence.length - sequence.length % self.block_size

    def _release(self, block_id: int) -> None:
        self._pool.release(block_id)
        # A pending copy to a free block is dropped; else the block could become the source of another copy.
        if self._pool.references[block_id] == 0 and block_id in self._copies:
            self._pool.unpin(self._copies.pop(block_id))


def _equal(what: str, left: object, equal_to: str, right: object) -> None:
    if left != right:
        raise ArenaError(f"arena integrity: {what} == {equal_to} does not hold: {left} != {right}")


def _ascending(equation: str, *values: int) -> None:
    if list(values) != sorted(values):
        raise ArenaError(f"arena integrity: {equation} does not hold: {' <= '.join(map(str, values))}")

"""The pager: which arena blocks hold which tokens of which sequence. Only bookkeeping; not thread-safe.

A sequence is a length and a block table; token i is in slot `table[i // block_size] * block_size + i % block_size`.
Sequences share blocks, which have reference counts. What others can read is never overwritten: before a sequence
appends to a partly filled last block that others have, or that the prefix cache knows with more tokens, it gets its own
copy of that block (copy-on-write).

One step of the engine does this, in this order:

1. `grow_all` (through `Batch.build`): block tables grow, and each new token gets a slot;
2. `take_evicted`: blocks and states that were given up still hold what they held; who wants it saves it now. Then what
   was saved earlier may be written back into blocks and slots that a sequence got;
3. `take_copies`: the host copies these blocks, in any order, before any kernel of the step;
4. the step runs and writes K and V of every appended token into its slot;
5. `commit`: when the step is certain to run, others may use what it writes.

A model that keeps states besides K and V has `states` (`mlxr.runtime.cache.sequence_states`): a sequence begins, forks
and ends here with its state; `Batch.build` asks `states` what the step reads and writes.

A model whose layers have different needs has `others` (`mlxr.runtime.cache.group_blocks`): they follow what happens to
the first group's blocks, and have copies of their own (`take_copies_of`).

A sequence is *settled* when all its tokens are in the blocks of its own table. It is settled by `take_copies`, until it
grows again. Only settled tokens can be shared. So copies are independent: no block is both source and destination.

`check_integrity` states the invariants.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import ArenaGeometry, LayerGroup
from mlxr.compiler.errors import ArenaError, ArenaFullError
from mlxr.runtime.cache.block_copies import BlockCopies
from mlxr.runtime.cache.block_hashes import BlockHashes
from mlxr.runtime.cache.blocks import BlockPool, BlockSequence, give_back
from mlxr.runtime.cache.equal_growth import EqualGrowth, Slots
from mlxr.runtime.cache.group_blocks import GroupBlocks
from mlxr.runtime.cache.growth import Growth
from mlxr.runtime.cache.kept_sequence import KeptSequence
from mlxr.runtime.cache.pager_tiers import PagerTiers
from mlxr.runtime.cache.prefix_cache import Prefix, PrefixCache
from mlxr.runtime.cache.prefix_index import CachedBlock as Evicted
from mlxr.runtime.cache.sequence_states import SequenceStates

_PASSED_BLOCKS = 4
"""Blocks of tokens that are passed over at a time: those of windows have room for a step."""
__all__ = ["Evicted", "Pager", "Prefix"]


class Pager(PagerTiers):
    """Block tables of all sequences over one `BlockPool`, and the prefix cache.

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
        record_evictions: bool = False,
        states: SequenceStates | None = None,
        others: Sequence[LayerGroup] = (),
    ) -> None:
        """Makes a pager with all blocks free.

        Args:
            num_blocks: blocks of the arena.
            block_size: tokens of a block.
            max_blocks_per_sequence: length of the longest block table.
            max_sequences: most sequences at once; 1 when contiguous.
            contiguous: whether block i of the only sequence is arena block i, as kernels without a block table assume.
            context: most tokens of a sequence; None: as many as the longest table has room for.
            record_evictions: whether `take_evicted` tells what was given up.
            states: of a model that keeps some; all its slots are free.
            others: the groups of layers after the first, whose blocks these are.

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
        self._pool.record_evictions = record_evictions
        self._tables = np.zeros((max_sequences, max_blocks_per_sequence), dtype=np.int32)
        self._free_rows = list(range(max_sequences - 1, -1, -1))
        if contiguous:
            self._prefixes = KeptSequence(self._pool, block_size)
        else:
            self._prefixes = PrefixCache(self._pool, block_size, self._tables)
        self._sequences = {}
        self._copies = BlockCopies(self._pool)
        self._growth = Growth(self._get, self._pool, self._tables, self._copies, block_size, self.context)
        self._equally = EqualGrowth(self._sequences, self._pool, block_size, self._tables, self._growth.take_block)
        self._next_id = 0
        self.states = states
        if states is not None:
            states.slots.record_evictions = record_evictions
        self.others = tuple(GroupBlocks(group, block_size, max_sequences, contiguous=contiguous) for group in others)
        self._pools = (self._pool, *(group.pool for group in self.others))

    @classmethod
    def from_geometry(cls, geometry: ArenaGeometry, *, record_evictions: bool = False) -> "Pager":
        """The pager of an arena."""
        states = None
        if geometry.num_slots:
            states = SequenceStates(
                geometry.num_slots, geometry.max_sequences, geometry.block_size, geometry.snapshot_tokens
            )
        return cls(
            geometry.num_blocks,
            geometry.block_size,
            geometry.max_blocks_per_sequence,
            geometry.max_sequences,
            contiguous=geometry.mode == "contiguous",
            context=geometry.context,
            record_evictions=record_evictions,
            states=states,
            others=geometry.groups[1:],
        )

    def save_memory(self, is_low: bool, num_bytes: int, sizes: Sequence[int]) -> list[list[int]]:
        """By group the blocks that nobody uses, of so many bytes where there are; what they hold is lost.

        While memory is low, blocks that are not in memory are taken last. `sizes` are the bytes of a group's block.
        """
        for pool in self._pools:
            pool.is_frugal = is_low
        return give_back(self._pools, sizes, num_bytes) if num_bytes and not self.contiguous else []

    def block_tables(self, seq_ids: Sequence[int], group: int = 0) -> npt.NDArray[np.int32]:
        """Blocks of several sequences: [sequences, blocks of the longest], int32; unused entries are 0.

        There are no columns that none of them uses: a step of short sequences costs the same whatever the context is.
        """
        tables = self._tables if group == 0 else self.others[group - 1].tables
        known = self._equally.known(seq_ids)
        sequences = [self._get(seq_id) for seq_id in seq_ids] if known is None else known[0]
        rows = [sequence.row for sequence in sequences] if known is None else known[1]
        return tables[:, : max([len(sequence.blocks) for sequence in sequences], default=0)].take(rows, axis=0)

    def find_prefix(self, tokens: Sequence[int], hashes: BlockHashes, *, whole_blocks: bool = False) -> Prefix:
        """The longest start of a prompt whose K and V are in the arena, without the last token: its logits are wanted.

        Changes nothing. The result is for an `add_sequence` that follows before blocks are taken or given back. Of a
        model with states, it goes back to the last tokens of which there is a snapshot.

        Args:
            tokens: the prompt.
            hashes: of the same tokens.
            whole_blocks: whether only full blocks count.
        """
        if self.others:
            return self._find_in_all(tokens, hashes)
        prefix = self._prefixes.find(tokens, hashes, whole_blocks)
        if self.states is None:
            return prefix
        length, slot = self.states.slots.find(tokens, hashes, prefix.num_tokens)
        blocks = prefix.blocks[: -(-length // self.block_size)]
        return replace(prefix, num_tokens=length, blocks=blocks, state_slot=slot, num_known=prefix.num_tokens)

    def first_difference(self, tokens: Sequence[int], hashes: BlockHashes) -> tuple[int, int] | None:
        """Where a prompt first differs from the prompt in the arena that is most like it, and the token there."""
        return self._prefixes.difference(tokens, hashes)

    def _find_in_all(self, tokens: Sequence[int], hashes: BlockHashes) -> Prefix:
        """The longest start in whole blocks that all groups have, and after which there is a state."""
        prefix, size = self._prefixes.find(tokens, hashes, True), self.block_size
        digests, count, slot = hashes.of(tokens, prefix.num_tokens), len(prefix.blocks), -1
        while count:
            found = min(group.find(digests, count) for group in self.others)
            if found < count:
                count = found
                continue
            if self.states is None:
                break
            length, slot = self.states.slots.find(tokens, hashes, count * size)
            if length == count * size:
                break
            count = length // size
        return Prefix(
            count * size,
            prefix.blocks[:count],
            self._version,
            slot if count else -1,
            prefix.num_tokens if self.states else 0,
            tuple(group.blocks_after(digests, count) for group in self.others),
        )

    def blocks_to_begin(self, prefix: Prefix, length: int) -> int:
        """How many of the free blocks a new sequence with this prefix needs until it has so many tokens.

        They include the prefix's idle blocks, and copies of blocks that it shares if one side uses only a part of them.
        """
        references, pins, size = self._pool.references, self._pool.pins, self.block_size
        idle = sum(not references[block_id] and not pins[block_id] for block_id in prefix.blocks)
        num_whole, rest = divmod(prefix.num_tokens, size)
        ends = {sequence.blocks[-1] for sequence in self._sequences.values() if sequence.length % size}
        copies = sum(references[block_id] == 1 for block_id in ends.intersection(prefix.blocks[:num_whole]))
        copies += rest > 0 and references[prefix.blocks[-1]] > 0
        return idle + copies + -(-length // size) - len(prefix.blocks)

    def can_add_sequence(self) -> bool:
        """Whether `add_sequence` would succeed."""
        return len(self._sequences) < self.max_sequences

    def add_sequence(self, prefix: Prefix | None = None) -> int:
        """Adds a sequence and returns its id.

        Args:
            prefix: what the sequence begins with, found just now; None: it is empty.

        Raises:
            ArenaError: there are `max_sequences` already, or blocks of the prefix may hold something else by now.
        """
        if not self.can_add_sequence():
            raise ArenaError(
                f"the arena holds {len(self._sequences)} of {self.max_sequences} sequences; "
                "free one, or compile the spec with a larger cache.max_sequences"
            )
        if prefix and prefix.num_tokens and prefix.version != self._version:
            raise ArenaError("the arena's blocks have changed since this prefix was found; find it again")
        seq_id, start = self._next_id, prefix or Prefix(0, ())
        if self.states is not None:
            self.states.add(seq_id, start.num_tokens, start.state_slot)
        self._next_id += 1
        self._sequences[seq_id] = sequence = BlockSequence(self._free_rows.pop())
        self._share(sequence, start)
        for group, blocks in zip(self.others, start.others or ((),) * len(self.others), strict=True):
            group.add(seq_id, sequence.row, start.num_tokens, blocks)
        return seq_id

    def commit(self, seq_id: int, tokens: Sequence[int], hashes: BlockHashes, length: int) -> None:
        """Tells the prefix cache that K and V of the first tokens are certainly in the arena.

        It costs almost nothing until a block is full. It may replace blocks of the sequence by equal
        ones of others that run.

        Args:
            seq_id: the sequence.
            tokens: its tokens. The list is kept: it may grow, but what it has must not change.
            hashes: of the same tokens.
            length: how many of the tokens; fewer than in an earlier call change nothing.

        Raises:
            ArenaError: unknown sequence, or a length beyond what the sequence has in its blocks; nothing has changed.
        """
        sequence = self._sequences.get(seq_id) or self._get(seq_id)
        if length <= sequence.committed:
            return
        if length > sequence.settled or length > len(tokens):
            raise ArenaError(
                f"cannot commit {length} tokens of sequence {seq_id}: it has {sequence.length}, of which "
                f"{sequence.settled} are in its blocks, and {len(tokens)} were given; commit after take_copies()"
            )
        self._prefixes.commit(sequence, tokens, hashes, length)
        for group in self.others:
            group.commit(seq_id, hashes.of(tokens, length), tokens, hashes)

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
            return self.num_blocks_needed(growths) <= self._pool.num_free and not self._lacking(growths)
        except ArenaError:
            return False

    def has_room(self, growths: Sequence[tuple[int, int]]) -> bool:
        """Whether sequences can grow so far in several steps: what leaves windows on the way is given back.

        Raises:
            ArenaError: as `num_blocks_needed`.
        """
        return self.num_blocks_needed(growths) <= self._pool.num_free

    def pass_over(self, seq_id: int, num_tokens: int) -> None:
        """Grows a sequence by tokens that no step computes, as measurements do.

        Raises:
            ArenaError: as `append_all`.
        """
        step = _PASSED_BLOCKS * self.block_size
        for begin in range(0, num_tokens, step):
            self.grow_all([(seq_id, min(step, num_tokens - begin))])

    def num_blocks_needed(self, growths: Sequence[tuple[int, int]]) -> int:
        """How many free blocks `append_all` would take, copies of shared ones included.

        Raises:
            ArenaError: unknown or repeated sequence, no tokens, or a sequence beyond the context.
        """
        return self._growth.blocks_needed(growths)

    def append_all(self, growths: Sequence[tuple[int, int]]) -> list[list[int]]:
        """`grow_all`; returns the slot of every new token."""
        self.grow_all(growths)
        return [self.last_slots(seq_id, num_tokens) for seq_id, num_tokens in growths]

    def grow_all(self, growths: Sequence[tuple[int, int]]) -> None:
        """Grows several sequences, all or none.

        Args:
            growths: (sequence id, number of new tokens >= 1), each sequence at most once.

        Raises:
            ArenaFullError: not enough free blocks; nothing has changed.
            ArenaError: unknown or repeated sequence, no tokens, or a sequence beyond the context; nothing has changed.
        """
        if self.others:
            self._growth.blocks_needed(growths)
            if self._lacking(growths):
                raise ArenaFullError(
                    f"appending {sum(n for _, n in growths)} tokens to {len(growths)} sequence(s) needs more blocks of "
                    "layers with windows than are free; give a step fewer tokens, or free a sequence"
                )
            grown = [(seq_id, self._get(seq_id).length, count) for seq_id, count in growths]
        self._growth.grow_all(growths)
        for group in self.others:
            for seq_id, length, count in grown:
                group.grow(seq_id, length, count)

    def _lacking(self, growths: Sequence[tuple[int, int]]) -> bool:
        """Whether a group after the first has too few free blocks."""
        grown = [(seq_id, self._get(seq_id).length, count) for seq_id, count in growths] if self.others else []
        return any(group.blocks_needed(grown) > group.pool.num_free for group in self.others)

    def append_to_each(self, seq_ids: Sequence[int], lengths: list[int], count: int = 1) -> Slots | None:
        """`append_all` of equally many tokens for each sequence, in less time, where that is plain.

        Returns:
            The slots: of each sequence's first token, then of each one's second, and so on. Or None, with nothing
            changed: for an error, a full arena, or a last block to be copied first.
        """
        if self.others and not (
            all(seq_id in self._sequences for seq_id in seq_ids)
            and all(group.grows_plainly(seq_ids, lengths, count) for group in self.others)
        ):
            return None
        slots = self._equally.append(seq_ids, lengths, count, self.context)
        if slots is not None:
            for group in self.others:
                for seq_id, length in zip(seq_ids, lengths, strict=True):
                    group.grow(seq_id, length, count)
        return slots

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
        fork = self._sequences[fork_id]
        if self.states is not None:
            self.states.fork(seq_id, fork_id)
        for group in self.others:
            group.remove(fork_id)
            group.fork(seq_id, fork_id, fork.row)
        self._share(fork, Prefix(sequence.length, tuple(sequence.blocks)))
        fork.num_cached = sequence.num_cached
        fork.committed = fork.num_cached * self.block_size
        return fork_id

    def take_copies(self) -> list[tuple[int, int]]:
        """Returns the pending block copies, as (source, destination), and settles every sequence.

        The caller must copy these blocks, K and V in all layers, and then run the step. No block is both source and
        destination, and destinations are distinct, so the order does not matter.
        """
        for sequence in self._sequences.values():
            sequence.settled = sequence.length
        return self._copies.take()

    def take_copies_of(self, group: int) -> list[tuple[int, int]]:
        """`take_copies` of a group after the first."""
        return self.others[group - 1].take_copies()

    def truncate(self, seq_id: int, length: int) -> None:
        """Keeps the first `length` tokens and releases the blocks after them.

        Raises:
            ArenaError: unknown sequence, or a length that is negative or beyond the sequence, or after which its state
                was not kept (see `nearest`); nothing has changed.
        """
        sequence = self._get(seq_id)
        if not 0 <= length <= sequence.length:
            raise ArenaError(f"cannot truncate sequence {seq_id} to {length}, expected 0 to {sequence.length} tokens")
        if not all(group.goes_back(seq_id, length) for group in self.others):
            kept = self.nearest(seq_id, sequence.length)
            raise ArenaError(
                f"sequence {seq_id} cannot go back to {length} of {kept} tokens: its windows gave them back"
            )
        if self.states is not None:
            self.states.truncate(seq_id, length)
        for group in self.others:
            group.truncate(seq_id, length)
        self._prefixes.truncate(sequence, length)
        for i in range(len(sequence.blocks) - 1, -(-length // self.block_size) - 1, -1):
            self._copies.release(sequence.blocks.pop())
            self._tables[sequence.row, i] = 0
        sequence.length = length
        sequence.settled = min(sequence.settled, length)

    def keep_state(self, seq_id: int) -> None:
        """Lets a sequence be truncated to the tokens that it has now, if there is room for its state.

        Raises:
            ArenaError: unknown sequence.
        """
        self._get(seq_id)
        if self.states is not None:
            self.states.keep(seq_id)

    def free(self, seq_id: int, tokens: Sequence[int] = (), hashes: BlockHashes | None = None, length: int = 0) -> None:
        """Forgets a sequence and releases its blocks. What was committed stays findable until it is evicted.

        Args:
            seq_id: the sequence.
            tokens: its tokens, to be committed first.
            hashes: of the same tokens; None: nothing more is committed.
            length: how many of the tokens are certainly in the arena.

        Raises:
            ArenaError: as `commit`; nothing has changed.
        """
        sequence = self._get(seq_id)
        if hashes is not None:
            self.commit(seq_id, tokens, hashes, length)
        self._prefixes.keep_last_block(sequence)
        if self.states is not None:
            self.states.end(seq_id, tokens, hashes, length)
        self.truncate(seq_id, 0)
        if self.states is not None:
            self.states.remove(seq_id)
        for group in self.others:
            group.remove(seq_id)
        self._free_rows.append(sequence.row)
        self._equally.forget()
        del self._sequences[seq_id]

    def _share(self, sequence: BlockSequence, prefix: Prefix) -> None:
        self._prefixes.share(sequence, prefix)
        self._tables[sequence.row, : len(sequence.blocks)] = sequence.blocks

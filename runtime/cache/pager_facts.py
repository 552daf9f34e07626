"""What a pager tells of its blocks and sequences, and the check of its invariants; nothing here changes anything."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import ArenaError
from mlxr.runtime.cache.block_copies import BlockCopies
from mlxr.runtime.cache.blocks import BlockPool, BlockSequence, block_states
from mlxr.runtime.cache.group_blocks import GroupBlocks
from mlxr.runtime.cache.integrity import check_blocks, check_index, check_open_sequences, check_sequence, equal
from mlxr.runtime.cache.kept_sequence import KeptSequence
from mlxr.runtime.cache.prefix_cache import PrefixCache
from mlxr.runtime.cache.sequence_states import SequenceStates


class PagerFacts:
    """The base of `Pager`, which sets and changes all attributes."""

    num_blocks: int
    block_size: int
    max_blocks_per_sequence: int
    max_sequences: int
    contiguous: bool
    context: int
    states: SequenceStates | None
    others: tuple[GroupBlocks, ...]
    _pool: BlockPool
    _pools: tuple[BlockPool, ...]
    _prefixes: PrefixCache | KeptSequence
    _sequences: dict[int, BlockSequence]
    _copies: BlockCopies
    _tables: npt.NDArray[np.int32]
    _free_rows: list[int]

    @property
    def _version(self) -> int:
        """Counts the changes of any group after which a block that was found may hold something else."""
        return sum(pool.version for pool in self._pools)

    @property
    def is_caching(self) -> bool:
        """Whether there are blocks, of any group, that only the prefix cache uses."""
        return bool(self.num_idle) or any(group.pool.idle for group in self.others)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no sequence and no pending copy uses; those that the prefix cache keeps are among them."""
        return self._pool.num_free

    num_free = num_free_blocks

    @property
    def num_idle(self) -> int:
        """Blocks that only the prefix cache uses: they are free, and can be found."""
        return self._prefixes.num_idle

    @property
    def num_used(self) -> int:
        """Blocks that sequences or pending copies use."""
        return self.num_blocks - self._pool.num_free

    @property
    def num_untaken(self) -> tuple[int, ...]:
        """By group the blocks that nobody has taken yet, or that were given back: they are not in memory."""
        return tuple(pool.num_blocks - pool.num_taken for pool in self._pools)

    @property
    def num_shared(self) -> int:
        """Blocks that several sequences use."""
        return sum(count > 1 for count in self._pool.references)

    def lives(self, group: int) -> Sequence[int]:
        """By block of a group: how often what it held was given up."""
        return self._pools[group].lives

    @property
    def num_sequences(self) -> int:
        """Sequences in the arena now."""
        return len(self._sequences)

    @property
    def sequence_ids(self) -> tuple[int, ...]:
        """Their ids, in the order in which they were added."""
        return tuple(self._sequences)

    def block_states(self, group: int = 0) -> str:
        """The state of each block of a group; see `blocks.block_states`."""
        if group:
            return self.others[group - 1].block_states()
        return block_states(self._pool, self._prefixes.idle_blocks(), self._copies.source_of.values())

    def length(self, seq_id: int) -> int:
        """Tokens of a sequence."""
        return self._get(seq_id).length

    def block_table(self, seq_id: int) -> tuple[int, ...]:
        """Blocks of a sequence in token order: ceil(length / block_size) of them."""
        return tuple(self._get(seq_id).blocks)

    def held_blocks(self, seq_id: int, group: int = 0) -> tuple[int, tuple[int, ...]]:
        """The blocks of a group that a sequence holds, in token order, after the number of the first one.

        That is 0, unless the group has a window that the first blocks have left.
        """
        return self.others[group - 1].held(seq_id) if group else (0, self.block_table(seq_id))

    def blocks_of(self, seq_id: int) -> list[int]:
        """Like `block_table`, as a list of its own."""
        return list(self._get(seq_id).blocks)

    def check_integrity(self) -> None:
        """Checks every invariant of the pager.

        Raises:
            ArenaError: one does not hold; the message is the failed equation.
        """
        check_blocks(self._pool, self._sequences.values(), self._copies.source_of)
        check_index(self._pool, self._sequences.values(), self.block_size)
        if isinstance(self._prefixes, PrefixCache):
            check_open_sequences(self._prefixes.open_sequences, self._sequences.values())
        for seq_id, sequence in self._sequences.items():
            who = f"sequence {seq_id}: "
            check_sequence(who, sequence, self._pool, self.block_size, self.context)
            unused = [0] * (self.max_blocks_per_sequence - len(sequence.blocks))
            equal(who + "block table", self._tables[sequence.row].tolist(), "blocks", [*sequence.blocks, *unused])
            if self.contiguous:
                equal(who + "contiguous table", sequence.blocks, "identity", list(range(len(sequence.blocks))))
        rows = [sequence.row for sequence in self._sequences.values()] + self._free_rows
        equal("rows of block tables, used and free", sorted(rows), "all", list(range(self.max_sequences)))
        if self.states is not None:
            self.states.check_integrity({seq_id: sequence.length for seq_id, sequence in self._sequences.items()})
        for group in self.others:
            group.check_integrity({seq_id: sequence.length for seq_id, sequence in self._sequences.items()})

    def nearest(self, seq_id: int, length: int) -> int:
        """The greatest number of tokens, up to `length`, to which a sequence can be truncated.

        Raises:
            ArenaError: unknown sequence.
        """
        most = min(length, self._get(seq_id).length)
        most = most if self.states is None else self.states.nearest(seq_id, most)
        return most if all(group.goes_back(seq_id, most) for group in self.others) else 0

    def last_slots(self, seq_id: int, count: int) -> list[int]:
        """The slots of a sequence's last tokens.

        Raises:
            ArenaError: unknown sequence.
        """
        sequence, size = self._get(seq_id), self.block_size
        positions = range(sequence.length - count, sequence.length)
        return [sequence.blocks[position // size] * size + position % size for position in positions]

    def _get(self, seq_id: int) -> BlockSequence:
        try:
            return self._sequences[seq_id]
        except KeyError:
            known = ", ".join(map(str, self._sequences)) or "none"
            raise ArenaError(f"unknown sequence {seq_id}, the arena holds: {known}") from None

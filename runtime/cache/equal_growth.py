"""Sequences that grow equally: what most steps do, in less time than the pager's general way takes."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from mlxr.runtime.cache.blocks import BlockPool, BlockSequence

Slots = list[int] | npt.NDArray[np.int32]
"""Of several steps an array, which takes less time."""


class EqualGrowth:
    """Finds slots in the sequences' blocks. The pager calls `forget` when a sequence goes.

    It remembers which sequences grew last, since the next step is nearly always for the same ones. Lengths, blocks and
    references are read anew each time.
    """

    def __init__(
        self,
        sequences: Mapping[int, BlockSequence],
        pool: BlockPool,
        block_size: int,
        tables: npt.NDArray[np.int32],
        take_block: Callable[[BlockSequence], int],
    ) -> None:
        """Stores what belongs to the pager.

        Args:
            sequences: all of them, by id.
            pool: the arena's blocks.
            block_size: tokens of a block.
            tables: the sequences' blocks, by row.
            take_block: adds a free block to a sequence's table and returns it.
        """
        self._by_id, self._pool, self._size = sequences, pool, block_size
        self._tables, self._take_block = tables, take_block
        self.forget()

    def forget(self) -> None:
        """Forgets the sequences that grew last."""
        self._seq_ids: list[int] = []
        self._sequences: list[BlockSequence] = []
        self._rows = np.zeros(0, np.intp)

    def known(self, seq_ids: Sequence[int]) -> tuple[list[BlockSequence], npt.NDArray[np.intp]] | None:
        """Sequences, and their rows in the tables; None if an id is unknown or comes twice."""
        if seq_ids == self._seq_ids:
            return self._sequences, self._rows
        known = [sequence for seq_id in seq_ids if (sequence := self._by_id.get(seq_id)) is not None]
        if len(known) < len(seq_ids) or len({*seq_ids}) < len(seq_ids):
            return None
        self._seq_ids, self._sequences = [*seq_ids], known
        self._rows = np.array([sequence.row for sequence in known], np.intp)
        return self._sequences, self._rows

    def append(self, seq_ids: Sequence[int], lengths: list[int], count: int, context: int) -> Slots | None:
        """See `Pager.append_to_each`.

        Args:
            seq_ids: the sequences.
            lengths: tokens of each.
            count: tokens that each grows by.
            context: most tokens of a sequence.
        """
        if self.known(seq_ids) is None or max(lengths, default=0) + count > context:
            return None
        sequences, size = self._sequences, self._size
        references, cached = self._pool.references, self._pool.index.cached
        slots: list[int] = []
        lacking: list[int] = []  # the places of those whose blocks have no room for all tokens
        needed = 0
        for sequence, length in zip(sequences, lengths, strict=True):  # NumPy is slower: its code is no longer cached
            if sequence.length != length:
                return None
            offset = length % size
            if offset:
                last = sequence.blocks[-1]
                if references[last] > 1 or (last in cached and len(cached[last].tokens) > offset):
                    return None
            if not 0 < offset <= size - count:
                lacking.append(len(slots))
                needed += -(-(offset + count) // size) - (offset > 0)
            slots.append(last * size + offset if offset else -1)
        if needed > self._pool.num_free:
            return None
        for i in lacking:
            sequence = sequences[i]
            begin, blocks = sequence.length, sequence.blocks
            while len(blocks) * size < begin + count:
                self._take_block(sequence)
            slots[i] = blocks[begin // size] * size + begin % size
        for sequence in sequences:
            sequence.length += count
        if count == 1:
            return slots
        found = np.array(slots, np.int32) + counts(count)
        if lacking:
            positions = np.array([lengths[i] for i in lacking], np.int32) + counts(count)
            blocks_of = self._tables[self._rows[lacking], positions // np.int32(size)]
            found[:, lacking] = blocks_of * np.int32(size) + positions % np.int32(size)
        return found.reshape(-1)


@cache
def counts(steps: int) -> npt.NDArray[np.int32]:
    """[steps, 1]: 0, 1, ..."""
    return np.arange(steps, dtype=np.int32)[:, None]

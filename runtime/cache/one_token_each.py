"""Sequences that grow by one token each: what most steps do, in less time than the pager's general way takes."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mlxr.runtime.cache.blocks import BlockPool, BlockSequence


class OneTokenEach:
    """Finds slots in the pager's array of block tables. The pager calls `forget` when a sequence goes.

    It remembers which sequences grew last, since the next step is nearly always for the same ones. Lengths, blocks and
    references are read anew each time.
    """

    def __init__(
        self,
        sequences: Mapping[int, BlockSequence],
        pool: BlockPool,
        tables: npt.NDArray[np.int32],
        block_size: int,
        take_block: Callable[[BlockSequence], int],
    ) -> None:
        """Stores what belongs to the pager.

        Args:
            sequences: all of them, by id.
            pool: the arena's blocks.
            tables: block tables, [max_sequences, max_blocks].
            block_size: tokens of a block.
            take_block: adds a free block to a sequence's table and returns it.
        """
        self._by_id, self._pool, self._tables, self._size = sequences, pool, tables, block_size
        self._take_block = take_block
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

    def append(self, seq_ids: Sequence[int], lengths: list[int], context: int) -> list[int] | None:
        """See `Pager.append_one_each`.

        Args:
            seq_ids: the sequences.
            lengths: tokens of each.
            context: most tokens of a sequence.
        """
        if self.known(seq_ids) is None or max(lengths, default=0) >= context:
            return None
        sequences, size = self._sequences, self._size
        references, cached = self._pool.references, self._pool.index.cached
        slots: list[int] = []
        full: list[int] = []  # the places of those whose last block is full
        for sequence, length in zip(sequences, lengths, strict=True):  # NumPy is slower: its code is no longer cached
            if sequence.length != length:
                return None
            if offset := length % size:
                last = sequence.blocks[-1]
                if references[last] > 1 or (last in cached and len(cached[last].tokens) > offset):
                    return None
                slots.append(last * size + offset)
            else:
                full.append(len(slots))
                slots.append(-1)
        if len(full) > self._pool.num_free:
            return None
        for i in full:
            slots[i] = self._take_block(sequences[i]) * size
        for sequence in sequences:
            sequence.length += 1
        return slots

"""How sequences grow: the blocks that they take, those that they copy first, and the slots of their new tokens."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import ArenaError, ArenaFullError
from mlxr.runtime.cache.block_copies import BlockCopies
from mlxr.runtime.cache.blocks import BlockPool, BlockSequence


class Growth:
    """What the pager does for sequences that grow by any number of tokens; see there."""

    def __init__(
        self,
        find: Callable[[int], BlockSequence],
        pool: BlockPool,
        tables: npt.NDArray[np.int32],
        copies: BlockCopies,
        block_size: int,
        context: int,
    ) -> None:
        """Stores what belongs to the pager.

        Args:
            find: a sequence by its id; raises ArenaError if there is none.
            pool: the arena's blocks.
            tables: block tables, [max_sequences, max_blocks].
            copies: the copies that the next step makes first.
            block_size: tokens of a block.
            context: most tokens of a sequence.
        """
        self._find, self._pool, self._tables, self._copies = find, pool, tables, copies
        self._size, self._context = block_size, context

    def blocks_needed(self, growths: Sequence[tuple[int, int]]) -> int:
        """See `Pager.num_blocks_needed`."""
        needed, size, references = 0, self._size, self._pool.references  # local: every step calls this twice
        left: dict[int, int] = {}  # references that earlier sequences of this call will have released
        seen: set[int] = set()
        for seq_id, num_tokens in growths:
            sequence = self._find(seq_id)
            if num_tokens < 1 or seq_id in seen:
                what = f"{num_tokens} tokens" if num_tokens < 1 else "tokens twice"
                raise ArenaError(f"cannot append {what} to sequence {seq_id}, expected at least 1 token, and once")
            seen.add(seq_id)
            if sequence.length + num_tokens > self._context:
                raise ArenaError(
                    f"sequence {seq_id} has {sequence.length} tokens, {num_tokens} more exceed the context of "
                    f"{self._context}; truncate it, or compile the spec with a larger model.context"
                )
            needed -= (-sequence.length - num_tokens) // size + len(sequence.blocks)
            last = sequence.blocks[-1] if sequence.length % size else None
            if last is not None and references[last] > 1 and references[last] - left.get(last, 0) > 1:
                needed += 1
                left[last] = left.get(last, 0) + 1
        return needed

    def grow_all(self, growths: Sequence[tuple[int, int]]) -> None:
        """See `Pager.grow_all`."""
        needed = self.blocks_needed(growths)
        spare = self._pool.num_free - needed
        if spare < 0:
            raise ArenaFullError(
                f"appending {sum(n for _, n in growths)} tokens to {len(growths)} sequence(s) needs {needed} blocks of "
                f"{self._size} tokens, {self._pool.num_free} of {self._pool.num_blocks} are free; free or truncate a "
                "sequence, or compile the spec with a larger cache.num_blocks or cache.memory_budget"
            )
        pool, cached, size = self._pool, self._pool.index.cached, self._size
        references = pool.references
        for seq_id, num_tokens in growths:  # each statement here runs for each sequence of each step
            sequence = self._find(seq_id)
            if offset := sequence.length % size:
                last = sequence.blocks[-1]
                if references[last] > 1:
                    self._own_last_block(sequence)
                elif last in cached and len(cached[last].tokens) > offset:
                    if spare:
                        spare -= 1
                        self._own_last_block(sequence)
                    else:  # nobody else needs it: rather forget what it holds than fail
                        pool.forget(last)
            blocks, sequence.length = sequence.blocks, sequence.length + num_tokens
            if (more := -(-sequence.length // size) - len(blocks)) > 0:
                blocks += pool.take_several(more)  # at once: Ctrl-C may come in between
                self._tables[sequence.row, len(blocks) - more : len(blocks)] = blocks[-more:]

    def take_block(self, sequence: BlockSequence) -> int:
        """Adds a free block to a sequence's table, and returns it."""
        self._tables[sequence.row, len(sequence.blocks)] = block_id = self._pool.take()
        sequence.blocks.append(block_id)
        return block_id

    def _own_last_block(self, sequence: BlockSequence) -> None:
        own = self._copies.add(sequence.blocks[-1])
        sequence.blocks[-1] = self._tables[sequence.row, len(sequence.blocks) - 1] = own
        sequence.settled = sequence.length - sequence.length % self._size

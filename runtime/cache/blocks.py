"""The blocks of the KV arena and who counts on them: reference counts, pins and the free list.

The one place where blocks are handed out and come back. A prefix index is one more holder of references, and an evictor
is what `BlockPool.take` asks when the free list is empty (`num_free` then counts what it could evict).
"""


class BlockPool:
    """Blocks by reference count. A block is free when it has no references and no pins.

    A reference is an occurrence in a block table; a pin keeps the content of a block until it has been copied.
    The free list is a stack, lowest block first at the start: a table released from its end is handed out again in the
    same order, so a single sequence always has the identity table.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.free_blocks = list(range(num_blocks - 1, -1, -1))
        self.references = [0] * num_blocks
        self.pins = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that `take` can still hand out."""
        return len(self.free_blocks)

    def take(self) -> int:
        """Hands out a free block with one reference; the caller has compared its need with `num_free`."""
        assert self.free_blocks, "take() on an empty pool: the caller must check num_free first"
        block_id = self.free_blocks.pop()
        self.references[block_id] = 1
        return block_id

    def share(self, block_id: int) -> None:
        """Adds a reference to a block in use."""
        assert self.references[block_id] > 0, f"block {block_id} is not in use and cannot be shared"
        self.references[block_id] += 1

    def release(self, block_id: int) -> None:
        """Drops a reference."""
        assert self.references[block_id] > 0, f"block {block_id} is released more often than it was taken"
        self.references[block_id] -= 1
        self._reclaim(block_id)

    def pin(self, block_id: int) -> None:
        """Keeps a block's content although its last reference may go."""
        self.pins[block_id] += 1

    def unpin(self, block_id: int) -> None:
        """Drops a pin."""
        assert self.pins[block_id] > 0, f"block {block_id} is unpinned more often than it was pinned"
        self.pins[block_id] -= 1
        self._reclaim(block_id)

    def _reclaim(self, block_id: int) -> None:
        if self.references[block_id] == 0 and self.pins[block_id] == 0:
            self.free_blocks.append(block_id)

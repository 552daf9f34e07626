"""The blocks of the KV arena: their reference counts, their pins, and the list of free ones.

Blocks are taken and given back only here. A prefix index will be one more owner of references. An evictor will be what
`BlockPool.take` calls when no block is free; `num_free` will then count the blocks that it can evict.
"""


class BlockPool:
    """Blocks by reference count. A block is free when it has no references and no pins.

    A reference is an occurrence in a block table; a pin keeps a block's content until it has been copied. The free list
    is a stack with the lowest block on top. Tables release their blocks from the end, so that the next table gets the
    same blocks in the same order: a single sequence always has the identity table.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.free_blocks = list(range(num_blocks - 1, -1, -1))
        self.references = [0] * num_blocks
        self.pins = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that `take` can still return."""
        return len(self.free_blocks)

    def take(self) -> int:
        """Removes a block from the free list and gives it one reference; the caller has checked `num_free`."""
        assert self.free_blocks, "take() on an empty pool: the caller must check num_free first"
        block_id = self.free_blocks.pop()
        self.references[block_id] = 1
        return block_id

    def share(self, block_id: int) -> None:
        """Adds a reference to a block in use."""
        assert self.references[block_id] > 0, f"block {block_id} is not in use and cannot be shared"
        self.references[block_id] += 1

    def release(self, block_id: int) -> None:
        """Removes a reference."""
        assert self.references[block_id] > 0, f"block {block_id} is released more often than it was taken"
        self.references[block_id] -= 1
        self._reclaim(block_id)

    def pin(self, block_id: int) -> None:
        """Keeps a block's content, even after its last reference is removed."""
        self.pins[block_id] += 1

    def unpin(self, block_id: int) -> None:
        """Removes a pin."""
        assert self.pins[block_id] > 0, f"block {block_id} is unpinned more often than it was pinned"
        self.pins[block_id] -= 1
        self._reclaim(block_id)

    def _reclaim(self, block_id: int) -> None:
        if self.references[block_id] == 0 and self.pins[block_id] == 0:
            self.free_blocks.append(block_id)

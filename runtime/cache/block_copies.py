"""Copies of blocks that the host makes before the next step, so that sequences write only blocks of their own."""

from mlxr.runtime.cache.blocks import BlockPool


class BlockCopies:
    """Pending copies. No block is both source and destination; sources are pinned, so that they keep what they hold.

    Attributes:
        source_of: the source of each destination.
    """

    def __init__(self, pool: BlockPool) -> None:
        """Starts without copies of a pool's blocks."""
        self._pool = pool
        self.source_of: dict[int, int] = {}

    def add(self, source: int) -> int:
        """Takes a block that will hold what a shared block holds, and gives back a reference to that one.

        Returns:
            The new block.
        """
        destination = self._pool.take()
        self._pool.pin(source)
        self._pool.release(source)
        self.source_of[destination] = source
        return destination

    def release(self, block_id: int) -> None:
        """Removes a reference to a block, and the pending copy to it if that was the last one.

        Otherwise the block could become the source of another copy.
        """
        self._pool.release(block_id)
        if self._pool.references[block_id] == 0 and block_id in self.source_of:
            self._pool.unpin(self.source_of.pop(block_id))

    def take(self) -> list[tuple[int, int]]:
        """All of them, as (source, destination); they are no longer pending."""
        copies = [(source, destination) for destination, source in self.source_of.items()]
        self.source_of.clear()
        for source, _ in copies:
            self._pool.unpin(source)
        return copies

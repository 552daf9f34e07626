"""Blocks in host memory, the least recently used first."""

import ctypes
import sys
from collections import OrderedDict
from contextlib import suppress

from mlxr.runtime.cache.block_hashes import Digest
from mlxr.runtime.cache.tiers.block_file import StoredBlock
from mlxr.runtime.cache.tiers.branches import Branches, branch_of


class MemoryTier:
    """Blocks within a limit of bytes. Callers hold a lock.

    Attributes:
        size_bytes: bytes of all blocks.
        limit_bytes: most of them.
        branches: of all blocks.
    """

    def __init__(self, limit_bytes: int) -> None:
        """Makes an empty tier.

        Args:
            limit_bytes: most bytes of blocks; 0: none is kept.
        """
        self.size_bytes = 0
        self.limit_bytes = limit_bytes
        self.branches = Branches()
        self._blocks: OrderedDict[Digest, StoredBlock] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, digest: Digest) -> bool:
        return digest in self._blocks

    def get(self, digest: Digest) -> StoredBlock | None:
        """The block of a digest, if it is here."""
        return self._blocks.get(digest)

    def use(self, digest: Digest) -> None:
        """Makes a block the most recently used one, if it is here."""
        if digest in self._blocks:
            self._blocks.move_to_end(digest)

    def add(self, block: StoredBlock) -> list[StoredBlock]:
        """Adds a block that is not here; returns the blocks that must leave: perhaps this one."""
        if block.data.nbytes > self.limit_bytes:
            return [block]
        self._blocks[block.digest] = block
        self.branches.add(branch_of(block.parent, block.tokens), block.digest)
        self.size_bytes += block.data.nbytes
        return self._drop_to(self.limit_bytes)

    def shrink(self, size_bytes: int) -> list[StoredBlock]:
        """Removes the least recently used blocks, so many bytes of them or a little more, and returns them."""
        return self._drop_to(max(0, self.size_bytes - size_bytes)) if size_bytes > 0 else []

    def newest_first(self) -> list[StoredBlock]:
        """All blocks, the most recently used first."""
        return list(reversed(self._blocks.values()))

    def _drop_to(self, limit_bytes: int) -> list[StoredBlock]:
        dropped = []
        while self.size_bytes > limit_bytes:
            _, block = self._blocks.popitem(last=False)
            self.branches.remove(branch_of(block.parent, block.tokens), block.digest)
            self.size_bytes -= block.data.nbytes
            dropped.append(block)
        return dropped


def give_memory_back() -> None:
    """Asks the C library to return freed memory to the system: glibc keeps blocks of up to 32 MiB for later."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # musl has no such function, and keeps nothing
            ctypes.CDLL(None).malloc_trim(0)

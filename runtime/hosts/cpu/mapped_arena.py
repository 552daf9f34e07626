"""The KV arena of the `cpu` host: memory of the system, of which each page is taken when it is first written.

So a long context costs nothing until it is used. Blocks are handed out from the first on, and what nobody has written
is zero without being in memory.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import ArenaGeometry
from mlxr.compiler.errors import ArenaError, HostError
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.hosts.cpu.memory import give_back, reserve
from mlxr.runtime.mlx_arrays import Bits

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}


class MappedArena(Arena):
    """An arena that the C program writes by its addresses, and that no MLX array has."""

    takes_pages: ClassVar[bool] = True

    def _allocate(self, geometry: ArenaGeometry) -> None:
        try:
            self._memory = [reserve(geometry.size_bytes // 2, "the KV arena") for _ in "KV"]
        except HostError as error:
            raise ArenaError(str(error)) from error
        element = _UNSIGNED[geometry.dtype.size_bytes]
        self._bits = [memory.view(element).reshape(geometry.shape) for memory in self._memory]
        self.token = mx.zeros((8,), dtype=mx.uint32)

    def bits(self) -> tuple[Bits, Bits]:
        """See `Arena`."""
        k, v = self._bits
        return k, v

    def give_back(self, block_ids: Sequence[int]) -> None:
        """See `Arena`. In layout `layer` a block has no pages of its own."""
        if self.geometry.layout != "block":
            return
        block = self.geometry.size_bytes // self.geometry.num_blocks // 2
        for first, stop in _runs(sorted(block_ids)):
            for memory in self._memory:
                give_back(memory, first * block, stop * block)

    @property
    def k(self) -> mx.array:
        """There is no such array."""
        raise NotImplementedError("host cpu has the arena outside of MLX: ask bits()")

    v = k


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of neighbouring numbers, each as (first, the one after the last): neighbours may share a page."""
    first = previous = None
    for number in numbers:
        if first is None or previous is None:
            first = number
        elif number != previous + 1:
            yield first, previous + 1
            first = number
        previous = number
    if first is not None and previous is not None:
        yield first, previous + 1

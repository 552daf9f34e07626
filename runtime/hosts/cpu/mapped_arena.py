"""The KV arena of the `cpu` host: memory of the system, of which each page is taken when it is first written.

So a long context costs nothing until it is used. Blocks are handed out from the first on, and what nobody has written
is zero without being in memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import ArenaGeometry
from mlxr.compiler.errors import ArenaError, HostError
from mlxr.runtime.arrays.mlx_arrays import Bits
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.hosts.cpu.memory import give_back, reserve

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}


class MappedArena(Arena):
    """An arena that the C program writes by its addresses, and that no MLX array has."""

    takes_pages: ClassVar[bool] = True

    def _allocate(self, geometry: ArenaGeometry) -> None:
        try:
            self._memory = {a.name: reserve(a.size_bytes, "the KV arena") for a in geometry.allocations}
        except HostError as error:
            raise ArenaError(str(error)) from error
        self._bits = {
            a.name: self._memory[a.name].view(_UNSIGNED[a.dtype.size_bytes]).reshape(a.shape)
            for a in geometry.allocations
        }
        self.token = mx.zeros((8,), dtype=mx.uint32)

    def bits(self) -> dict[str, Bits]:
        """See `Arena`."""
        return self._bits

    def give_back(self, block_ids: Sequence[int], group: int = 0) -> None:
        """See `Arena`. In layout `layer` a block has no pages of its own."""
        if self.geometry.layout != "block":
            return
        for first, stop in _runs(sorted(block_ids)):
            for allocation in self.geometry.of_group(group):
                block = allocation.unit_bytes
                give_back(self._memory[allocation.name], first * block, stop * block)

    @property
    def stores(self) -> Mapping[str, mx.array]:
        """There are no such arrays."""
        raise NotImplementedError("host cpu has the arena outside of MLX: ask bits()")


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

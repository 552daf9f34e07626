"""The KV arena of the `cpu` host: memory of the system, of which each page is taken when it is first written.

So a long context costs nothing until it is used. Blocks are handed out from the first on, and what nobody has written
is zero without being in memory.
"""

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import ArenaGeometry
from mlxr.compiler.errors import ArenaError, HostError
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.hosts.cpu.memory import reserve
from mlxr.runtime.mlx_arrays import Bits

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}


class MappedArena(Arena):
    """An arena that the C program writes by its addresses, and that no MLX array has."""

    def _allocate(self, geometry: ArenaGeometry) -> None:
        element = _UNSIGNED[geometry.dtype.size_bytes]
        try:
            self._bits = tuple(
                reserve(geometry.size_bytes // 2, "the KV arena").view(element).reshape(geometry.shape) for _ in "KV"
            )
        except HostError as error:
            raise ArenaError(str(error)) from error
        self.token = mx.zeros((8,), dtype=mx.uint32)

    def bits(self) -> tuple[Bits, Bits]:
        """See `Arena`."""
        k, v = self._bits
        return k, v

    @property
    def k(self) -> mx.array:
        """There is no such array."""
        raise NotImplementedError("the arena of host cpu is no MLX array: ask bits()")

    v = k

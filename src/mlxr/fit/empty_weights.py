"""Memory that stands for the weights of a C program whose speed is measured.

Weights get addresses in a pool that is larger than a CPU's caches, one after another and from its start again; a model
that is smaller than the pool lies there as it would in memory. Of experts every token chooses the first ones. So in a
pool that is used again the next tensor begins after those: of each layer, other bytes are read.
"""

from collections.abc import Mapping, Sequence

from mlxr.compiler.artifact import CTensor
from mlxr.runtime.hosts.cpu.memory import aligned, reserve

_POOL_BYTES = 1 << 30


class EmptyWeights:
    """Zeros in memory that stand for the tensors of a program.

    Attributes:
        size_bytes: of the pool in which they are.
    """

    def __init__(self, tensors: Sequence[CTensor], most_bytes: int = _POOL_BYTES) -> None:
        """Takes the memory, page by page: one that was never written is shared by all."""
        sizes = [aligned(tensor.size_bytes) for tensor in tensors]
        self.size_bytes = min(sum(sizes), max(most_bytes, *sizes))
        self._memory = reserve(self.size_bytes)
        self._memory[:] = 0
        self._addresses: dict[CTensor, int] = {}
        place, is_whole = 0, self.size_bytes == sum(sizes)
        for tensor, size in zip(tensors, sizes, strict=True):
            place = 0 if place + size > self.size_bytes else place
            self._addresses[tensor] = self._memory.ctypes.data + place
            place += size if is_whole or tensor.matrices == 1 else aligned(tensor.stride * tensor.chosen)

    def lent(self) -> Mapping[CTensor, int]:
        """See `Lender`."""
        return self._addresses

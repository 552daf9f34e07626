"""The arena: the allocations of all stores, made once and never replaced, reshaped or copied.

Kernels write to it through a const-cast input, which MLX does not notice. So every launch that reads or writes the
arena binds `Arena.token` and returns a new token, which the host stores there: the tokens put all accesses in order.
The pager (`mlxr.runtime.cache.pager`) decides which sequence owns which block; the arena knows no sequences.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

import mlx.core as mx

from mlxr.compiler.artifact import ArenaGeometry
from mlxr.compiler.errors import ArenaError
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES, Bits, as_bits


class Arena:
    """What a model keeps between steps: an array for each allocation of the plan, by name.

    MLX's arrays are all in memory from the start. GPUs need that: Metal makes a whole buffer resident for each command
    that has it, CUDA allocates it.

    Mutable state: `token`, which hosts replace, and the bytes of the arrays, which kernels write.

    Attributes:
        before_access: called whenever the token is taken, by hosts that give the device work that MLX does not know.
        geometry: the arena of the plan, perhaps with another number of blocks.
    """

    takes_pages: ClassVar[bool] = False
    """Whether its memory is taken page by page, as blocks are first used, and can be given back."""
    before_access: Callable[[], None] | None = None

    def __init__(self, geometry: ArenaGeometry) -> None:
        """Allocates all stores, filled with zeros: a masked lane multiplies what it reads by 0, and 0 * NaN is NaN.

        Raises:
            ArenaError: the arena does not fit in this machine's memory, or MLX refused to allocate it.
        """
        _check_memory(geometry)
        self._allocate(geometry)
        self.geometry = geometry
        self.check_contiguous()

    @property
    def token(self) -> mx.array:
        """u32[8], the output of the newest access. A host binds it in each access and replaces it with the result."""
        if self.before_access is not None:
            self.before_access()
        return self._token

    @token.setter
    def token(self, token: mx.array) -> None:
        self._token = token

    def _allocate(self, geometry: ArenaGeometry) -> None:
        try:
            self._stores = {
                allocation.name: mx.zeros(allocation.shape, dtype=MLX_DTYPES[str(allocation.dtype)])
                for allocation in geometry.allocations
            }
            self.token = mx.zeros((8,), dtype=mx.uint32)
            mx.eval(*self._stores.values(), self.token)
        except (RuntimeError, MemoryError, ValueError, OverflowError) as error:
            raise ArenaError(f"cannot allocate {_describe(geometry)}: {error}; {_FIX}") from error

    @property
    def stores(self) -> Mapping[str, mx.array]:
        """The arrays by the names of the plan's allocations, in its order."""
        return MappingProxyType(self._stores)

    def bits(self) -> dict[str, Bits]:
        """Views of the arrays as unsigned integers, where the CPU shares their memory."""
        return {name: as_bits(array) for name, array in self._stores.items()}

    def addresses(self) -> tuple[int, ...]:
        """The addresses of the arrays in this process, which stay the same as long as the arena exists.

        Waits for pending work on the arrays. Copies nothing where the CPU shares the memory.
        """
        return tuple(int(bits.__array_interface__["data"][0]) for bits in self.bits().values())

    def give_back(self, block_ids: Sequence[int], group: int = 0) -> None:
        """Gives the memory of a group's blocks that hold nothing back to the system, where possible; they become zero.

        MLX's arrays keep their memory.
        """

    def check_contiguous(self) -> None:
        """Checks that the arrays are whole and row-major, as kernels need them: MLX makes them no contiguous copies.

        Not checked with MLX's CUDA build, which would move the arrays to memory that the CPU can see, for good.

        Raises:
            ArenaError: one of them is not.
        """
        if mx.cuda.is_available():
            return
        for allocation, bits in zip(self.geometry.allocations, self.bits().values(), strict=True):
            if not bits.flags.c_contiguous or bits.shape != allocation.shape:
                raise ArenaError(
                    f"{allocation.name} has shape {bits.shape} and byte strides {bits.strides}, expected row-major "
                    f"{allocation.shape}; kernels would write into a temporary copy"
                )


_FIX = "compile the spec with a smaller model.context, cache.max_sequences, cache.num_blocks or cache.memory_budget"


def _describe(geometry: ArenaGeometry) -> str:
    parts = [f"{part.name} {' x '.join(map(str, part.shape))} {part.dtype!s}" for part in geometry.allocations]
    return f"the KV arena of {geometry.size_bytes} bytes ({', '.join(parts)})"


def device_memory_bytes() -> int:
    """The memory in which MLX keeps arrays: an NVIDIA GPU's own, else this machine's."""
    if mx.cuda.is_available() and (total := mx.device_info().get("total_memory")):
        return int(total)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _check_memory(geometry: ArenaGeometry) -> None:
    # MLX's CPU allocator does not report a failed allocation: the process dies. So sizes are compared first.
    memory_bytes = device_memory_bytes()
    if geometry.size_bytes > memory_bytes:
        raise ArenaError(f"{_describe(geometry)} exceeds this machine's memory of {memory_bytes} bytes; {_FIX}")
    buffer_bytes = int(mx.device_info().get("max_buffer_length", memory_bytes))
    if max((allocation.size_bytes for allocation in geometry.allocations), default=0) > buffer_bytes:
        raise ArenaError(f"{_describe(geometry)} exceeds the device's largest buffer of {buffer_bytes} bytes; {_FIX}")

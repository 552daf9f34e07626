"""The base of the C kernels that read or write the KV arena.

A head's numbers are in scratch as f32, padded with zeros to whole vectors of 16 lanes (`padded_dim`), whatever vectors
the machine has.
"""

from dataclasses import dataclass

from mlxr.compiler.formats.arena import CacheGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.schedule.kernel import round_up
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel

LANES = 16
"""Lanes of the widest vector; scratch is padded to whole vectors of this width."""


@dataclass(frozen=True)
class CpuArenaKernel(CpuKernel):
    """Base of the kernels that read or write keys and values. Strides are in bytes, within K or within V.

    Attributes:
        arena: the keys and values of the kernel's group of layers.
        stores: the numbers of the allocations of K and V in the program's list of stores.
        group: the number of the group, whose slots and block tables the batch has.
    """

    arena: CacheGeometry
    stores: tuple[int, ...]
    group: int

    @property
    def keys(self) -> str:
        """The address of K in C, where `w` is the worker."""
        return f"w->model->stores[{self.stores[0]}]"

    @property
    def values(self) -> str:
        """The address of V."""
        return f"w->model->stores[{self.stores[1]}]"

    @property
    def blocks(self) -> str:
        """The batch's slots and block tables of the group, where `b` is the batch."""
        return f"b->groups[{self.group}]"

    @property
    def cache(self) -> DType:
        """Element type of the arena."""
        return self.arena.dtype

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.arena.head_dim

    @property
    def padded_dim(self) -> int:
        """Elements of a head in scratch."""
        return round_up(self.arena.head_dim, LANES)

    @property
    def num_kv_heads(self) -> int:
        """KV heads."""
        return self.arena.num_kv_heads

    @property
    def token_bytes(self) -> int:
        """Bytes from one token of a block to the next."""
        return self.arena.num_kv_heads * self.arena.row_bytes

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one layer of one block; they are adjacent."""
        return self.arena.block_size * self.token_bytes

    @property
    def block_stride(self) -> int:
        """Bytes from one block to the next, in one layer."""
        return self.chunk_bytes * (self.arena.num_layers if self.arena.layout == "block" else 1)

    @property
    def layer_stride(self) -> int:
        """Bytes from one layer to the next, in one block."""
        return self.chunk_bytes * (1 if self.arena.layout == "block" else self.arena.num_blocks)

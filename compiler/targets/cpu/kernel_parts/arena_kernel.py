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
        """Element type of the arena; of keys, where values have another."""
        return self.arena.dtype

    @property
    def value_cache(self) -> DType:
        """Element type of values."""
        return self.arena.value_dtype

    @property
    def mixed(self) -> bool:
        """Whether each 32 elements of keys and values are mixed before they are stored, as in q4."""
        return self.arena.mixed

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.arena.head_dim

    @property
    def values_differ(self) -> bool:
        """Whether values have rows of another size than keys, and so lie elsewhere in their arena."""
        return self.arena.v_dim is not None

    @property
    def padded_dim(self) -> int:
        """Elements of a head in scratch, of a key or of a value, whichever is longer."""
        return round_up(max(self.arena.head_dim, self.arena.value_dim), LANES)

    @property
    def num_kv_heads(self) -> int:
        """KV heads."""
        return self.arena.num_kv_heads

    @property
    def token_bytes(self) -> int:
        """Bytes from one token of a block to the next, of keys."""
        return self.arena.num_kv_heads * self.arena.row_bytes

    @property
    def block_stride(self) -> int:
        """Bytes from one block to the next, in one layer, of keys."""
        return self._block_stride(self.token_bytes)

    @property
    def layer_stride(self) -> int:
        """Bytes from one layer to the next, in one block, of keys."""
        return self._layer_stride(self.token_bytes)

    @property
    def v_token_bytes(self) -> int:
        """The same of values, as the next two."""
        return self.arena.num_kv_heads * self.arena.value_bytes

    @property
    def v_block_stride(self) -> int:
        """Bytes from one block to the next, in one layer, of values."""
        return self._block_stride(self.v_token_bytes)

    @property
    def v_layer_stride(self) -> int:
        """Bytes from one layer to the next, in one block, of values."""
        return self._layer_stride(self.v_token_bytes)

    # The tokens of one layer of one block are adjacent.
    def _block_stride(self, token_bytes: int) -> int:
        layers = self.arena.num_layers if self.arena.layout == "block" else 1
        return self.arena.block_size * token_bytes * layers

    def _layer_stride(self, token_bytes: int) -> int:
        blocks = 1 if self.arena.layout == "block" else self.arena.num_blocks
        return self.arena.block_size * token_bytes * blocks

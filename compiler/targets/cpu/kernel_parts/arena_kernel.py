"""The base of the C kernels that read or write the KV arena.

A head's numbers are in scratch as f32, padded with zeros to whole vectors of 16 lanes (`padded_dim`), whatever vectors
the machine has.
"""

from dataclasses import dataclass

from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel
from mlxr.compiler.targets.rounding import round_up

LANES = 16
"""Lanes of the widest vector; scratch is padded to whole vectors of this width."""


@dataclass(frozen=True)
class CpuArenaKernel(CpuKernel):
    """Base of the kernels that read or write the arena. Strides are in bytes, within K or within V."""

    arena: ArenaGeometry

    @property
    def cache(self) -> DType:
        """Element type of the arena."""
        return DType(self.arena.dtype)

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

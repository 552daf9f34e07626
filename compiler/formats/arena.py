"""Geometry of the KV arena: what the plan fixes and the runtime allocates.

K and V are two arrays of the same shape. Dimensions are counts; `block_size` is in tokens.
"""

import math
from dataclasses import dataclass
from typing import Literal

from mlxr.compiler.formats.dtypes import DType


def cache_row_bytes(dtype: DType, head_dim: int) -> int:
    """Bytes that one token takes in one KV head: its elements and, in q8, the f32 scale after them."""
    return head_dim * dtype.size_bytes + (4 if dtype is DType.Q8 else 0)


@dataclass(frozen=True)
class ArenaGeometry:
    """Dimensions of the KV arena and the limits of the sequences in it.

    `context` is the most tokens of a sequence, `max_blocks_per_sequence` the number of blocks for as many.
    """

    layout: Literal["block", "layer"]
    mode: Literal["paged", "contiguous"]
    num_blocks: int
    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: DType
    max_blocks_per_sequence: int
    max_sequences: int
    context: int

    @property
    def row_bytes(self) -> int:
        """Bytes that one token takes in one KV head."""
        return cache_row_bytes(self.dtype, self.head_dim)

    @property
    def row_elements(self) -> int:
        """Size of the arena's last dimension; in q8 it includes the 4 bytes of the f32 scale."""
        return self.row_bytes // self.dtype.size_bytes

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """Shape of K, and of V: [blocks, layers, ...] in layout block, [layers, blocks, ...] in layout layer."""
        inner = (self.block_size, self.num_kv_heads, self.row_elements)
        if self.layout == "block":
            return (self.num_blocks, self.num_layers, *inner)
        return (self.num_layers, self.num_blocks, *inner)

    @property
    def size_bytes(self) -> int:
        """Bytes of K and V together."""
        return 2 * math.prod(self.shape) * self.dtype.size_bytes

"""The geometry of an arena of keys and values whose layers are alike."""

from typing import Literal

from mlxr.compiler.artifact import ArenaGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import LayerGroup, StoreRow, keys_and_values


def kv_arena(
    layout: Literal["block", "layer"],
    mode: Literal["paged", "contiguous"],
    num_blocks: int,
    num_layers: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: DType,
    max_blocks_per_sequence: int,
    max_sequences: int,
    context: int,
) -> ArenaGeometry:
    """One group of all layers."""
    stores = keys_and_values([StoreRow((num_kv_heads, head_dim), dtype)] * num_layers)
    groups = (LayerGroup(tuple(range(num_layers)), num_blocks, max_blocks_per_sequence),)
    return ArenaGeometry(layout, mode, block_size, max_sequences, context, stores, groups)

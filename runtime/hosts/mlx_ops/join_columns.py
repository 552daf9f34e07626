"""Rows of several values, side by side."""

import mlx.core as mx

from mlxr.compiler.ir.ops.join_columns import JoinColumns
from mlxr.runtime.hosts.mlx_ops.table import evaluates
from mlxr.runtime.hosts.mlx_ops.types import ArenaLayer, Inputs, Outputs


@evaluates(JoinColumns)
def join_columns(inputs: Inputs, attrs: JoinColumns, arena: ArenaLayer | None = None) -> Outputs:
    """Three values [tokens, width] -> [tokens, 3 * width]."""
    return {"out": mx.concatenate([inputs[port] for port in attrs.inputs], axis=-1)}

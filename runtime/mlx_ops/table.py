"""The table: op kind -> function. It covers every kind that the compiler's op table has."""

import mlx.core as mx

from mlxr.runtime.arena import Arena
from mlxr.runtime.mlx_ops import attend, dense
from mlxr.runtime.mlx_ops.types import Attrs, Inputs, OpFunction, Outputs

MLX_OPS: dict[str, OpFunction] = {
    "embed": dense.embed,
    "rms_norm": dense.rms_norm,
    "linear": dense.linear,
    "activation": dense.activation,
    "multiply": dense.multiply,
    "add": dense.add,
    "gather_rows": dense.gather_rows,
    "split": dense.split,
    "projection": dense.projection,
    "rope": attend.rope,
    "cache_write": attend.cache_write,
    "attention": attend.attention,
    "rope_write_attention": attend.rope_write_attention,
    "rope_cache_write": attend.rope_cache_write,
    "rope_attention": attend.rope_attention,
}


def evaluate(kind: str, inputs: Inputs, attrs: Attrs, arena: Arena | None = None) -> Outputs:
    """Runs one op.

    Args:
        kind: the op's kind.
        inputs: arrays by port; batch metadata in its exact size.
        attrs: the op's attributes.
        arena: for ops that access it; they write it in place, after the accesses that its token stands for.

    Returns:
        Arrays by port. An op that accesses the arena has done so; the rest is lazy.
    """
    if arena is not None:
        mx.eval(arena.token)
    return MLX_OPS[kind](inputs, attrs, arena)

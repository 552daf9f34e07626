"""The table: op kind -> function. It covers every kind that the compiler's op table has."""

import mlx.core as mx

from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.hosts.mlx_ops import attend, dense, experts, normalise
from mlxr.runtime.hosts.mlx_ops.types import Attrs, Inputs, OpFunction, Outputs

MLX_OPS: dict[str, OpFunction] = {
    "embed": dense.embed,
    "norm": normalise.norm,
    "linear": dense.linear,
    "activation": dense.activation,
    "multiply": dense.multiply,
    "swiglu_oai": dense.swiglu_oai,
    "add": dense.add,
    "scale": dense.scale,
    "soft_cap": dense.soft_cap,
    "gather_rows": dense.gather_rows,
    "gate_rows": dense.gate_rows,
    "split": dense.split,
    "projection": dense.projection,
    "qk_norm": normalise.qk_norm,
    "rope": attend.rope,
    "temperature": attend.temperature,
    "cache_write": attend.cache_write,
    "attention": attend.attention,
    "rope_write_attention": attend.rope_write_attention,
    "rope_cache_write": attend.rope_cache_write,
    "rope_attention": attend.rope_attention,
    "route": experts.route,
    "expert_linear": experts.expert_linear,
    "expert_sum": experts.expert_sum,
    "expert_projection": experts.expert_projection,
    "expert_combine": experts.expert_combine,
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

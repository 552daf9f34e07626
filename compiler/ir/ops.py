"""The op table: ports, attributes, arena access and stages of every op kind.

Ops are the vocabulary shared by the builder, the passes, the reference host and the plan; `shape_rules` has the rule of
each. An op's `token` ports order arena accesses; they are optional in the table because the `order_arena` pass adds
them, and the verifier of the `ordered` stage demands them. Every op of a kind has all of its attributes; one that does
nothing has the value named below.

Attributes that several kinds share:
    activation: silu, gelu, gelu_tanh, relu, relu2 (relu squared) or swiglu_oai; None for none.
    gated: whether the weight's rows are the gate's and then the up projection's, and the result is act(gate) * up.
    limit: swiglu_oai only: gate <= limit, |up| <= limit; None for no limit.
    norm_kind, eps: of the norm before a projection; None without one.
    residual_scale: factor of what is added to the residual; 1.
    rotary_dim: leading elements of a head that are rotated; 0 for none, and then `frequencies` is not bound.
    rope_scale: factor of the cosines and sines; 1.
    softcap: scores become cap * tanh(scores / cap), after the scale; None for none.
    temperature_beta, temperature_context: queries times 1 + beta * ln(1 + floor(position / context)); None for none.
    window: tokens that a query sees, itself included; None for all.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from mlxr.compiler.ir import shape_rules as rules
from mlxr.compiler.ir.shape_rules import (
    ACTIVATIONS,
    NORMS,
    ROUTERS,
    Attrs,
    AttrValue,
    Dim,
    RuleError,
    Shape,
    Tensor,
    Tensors,
)

__all__ = [
    "ACTIVATIONS",
    "NORMS",
    "OPS",
    "PLAIN_PROJECTION",
    "ROUTERS",
    "AttrValue",
    "Attrs",
    "Dim",
    "OpKind",
    "RuleError",
    "Shape",
    "Tensor",
    "Tensors",
]


@dataclass(frozen=True)
class OpKind:
    """One kind of op.

    Attributes:
        infer: (inputs by port, attrs) -> outputs by port; raises RuleError.
        arena: how it touches the KV arena; anything but `none` is an effect that dead-op removal keeps.
        stages: the stages of the pipeline whose graphs may hold it.
    """

    name: str
    summary: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    infer: Callable[[Tensors, Attrs], dict[str, Tensor]]
    optional: tuple[str, ...] = ()
    attrs: tuple[str, ...] = ()
    arena: Literal["none", "read", "write", "readwrite"] = "none"
    stages: frozenset[str] = field(default=frozenset({"source", "fused", "ordered"}))


PLAIN_PROJECTION: dict[str, AttrValue] = {
    "eps": None,
    "norm_kind": None,
    "activation": None,
    "gated": False,
    "limit": None,
    "residual_scale": 1.0,
    "out_scale": 1.0,
    "out_cap": None,
}
"""Attributes of a projection that is a linear op."""

_FUSED = frozenset({"fused", "ordered"})
_SOURCE = frozenset({"source", "fused"})
_HEADS = ("layer", "num_heads", "num_kv_heads", "head_dim")
_ROTARY = ("rotary_dim", "rope_layout", "rope_scale")
_SCORES = ("scale", "window", "softcap")
_TEMPERATURE = ("temperature_beta", "temperature_context")
_TABLES = ("positions", "query_start", "context_lens", "block_tables")
_ARENA = ("k_arena", "v_arena")
_EXPERTS = ("num_experts", "top_k", "dtype")

_DENSE = (
    OpKind("embed", "scale * table[ids]", ("ids", "table"), ("out",), rules.embed, attrs=("dtype", "scale")),
    OpKind(
        "norm",
        "residual + residual_scale * (x / rms(x) or (x - mean) / deviation, of each group of columns, * weight + bias)",
        ("x", "weight"),
        ("out",),
        rules.norm,
        ("bias", "residual"),
        ("kind", "eps", "groups", "residual_scale"),
    ),
    OpKind("linear", "x @ weight.T + bias", ("x", "weight"), ("out",), rules.linear, ("bias",), ("dtype",)),
    OpKind("activation", "silu, gelu or relu", ("x",), ("out",), rules.activation, attrs=("kind",), stages=_SOURCE),
    OpKind("multiply", "a * b", ("a", "b"), ("out",), rules.elementwise, stages=_SOURCE),
    OpKind(
        "swiglu_oai",
        "(b + 1) * a * sigmoid(1.702 a), a at most limit, b within +-limit",
        ("a", "b"),
        ("out",),
        rules.swiglu_oai,
        attrs=("limit",),
        stages=_SOURCE,
    ),
    OpKind("add", "a + alpha * b", ("a", "b"), ("out",), rules.add, attrs=("alpha",), stages=_SOURCE),
    OpKind("scale", "factor * x", ("x",), ("out",), rules.scale, attrs=("factor",), stages=_SOURCE),
    OpKind("soft_cap", "cap * tanh(x / cap)", ("x",), ("out",), rules.soft_cap, attrs=("cap",), stages=_SOURCE),
    OpKind("gather_rows", "x[rows]", ("x", "rows"), ("out",), rules.gather_rows, stages=_SOURCE),
    OpKind("gate_rows", "x * sigmoid(gate)", ("x", "gate"), ("out",), rules.gate_rows, stages=_SOURCE),
    OpKind(
        "projection",
        "y = act(norm(x[rows]) @ weight.T + bias) * out_scale, soft capped; residual + residual_scale * "
        "sigmoid(gate) * y",
        ("x", "weight"),
        ("out",),
        rules.projection,
        ("norm", "norm_bias", "bias", "residual", "rows", "gate"),
        ("dtype", *PLAIN_PROJECTION),
        stages=_FUSED,
    ),
)

_ATTENTION = (
    OpKind("split", "columns of qkv", ("x",), ("q", "k", "v"), rules.split, attrs=("q", "k", "v"), stages=_SOURCE),
    OpKind(
        "qk_norm",
        "norm of the queries and keys of qkv; values as they are",
        ("qkv", "q_norm", "k_norm"),
        ("out",),
        rules.qk_norm,
        ("q_norm_bias", "k_norm_bias"),
        ("num_heads", "num_kv_heads", "head_dim", "scope", "kind", "eps"),
        stages=_FUSED,
    ),
    OpKind(
        "rope",
        "rotary position embedding of every head",
        ("x", "positions", "frequencies"),
        ("out",),
        rules.rope,
        attrs=("num_heads", "head_dim", *_ROTARY),
        stages=_SOURCE,
    ),
    OpKind(
        "temperature",
        "x * (1 + beta * ln(1 + floor(position / original_context)))",
        ("x", "positions"),
        ("out",),
        rules.temperature,
        attrs=("beta", "original_context"),
        stages=_SOURCE,
    ),
    OpKind(
        "cache_write",
        "k and v into their slots of the arena",
        ("k", "v", "slots", *_ARENA),
        ("token",),
        rules.cache_write,
        ("token",),
        ("layer", "num_kv_heads", "head_dim"),
        "write",
        _SOURCE,
    ),
    OpKind(
        "attention",
        "softmax(scale q k^T) v over the arena, causal; sinks: one more score of each head",
        ("q", *_TABLES, *_ARENA),
        ("out", "token"),
        rules.attention,
        ("sinks", "token"),
        (*_HEADS, *_SCORES),
        "read",
        _SOURCE,
    ),
    OpKind(
        "rope_write_attention",
        "decode: RoPE, cache write and attention of one new token a sequence",
        ("qkv", "positions", "slots", "context_lens", "block_tables", *_ARENA),
        ("out", "token"),
        rules.packed_attention,
        ("frequencies", "sinks", "token"),
        (*_HEADS, *_ROTARY, *_SCORES, *_TEMPERATURE),
        "readwrite",
        _FUSED,
    ),
    OpKind(
        "rope_cache_write",
        "prefill: RoPE of k, then k and v into the arena",
        ("qkv", "positions", "slots", *_ARENA),
        ("token",),
        rules.rope_cache_write,
        ("frequencies", "token"),
        (*_HEADS, *_ROTARY),
        "write",
        _FUSED,
    ),
    OpKind(
        "rope_attention",
        "prefill: RoPE of q and attention over the arena",
        ("qkv", "query_tiles", *_TABLES, *_ARENA),
        ("out", "token"),
        rules.packed_attention,
        ("frequencies", "sinks", "token"),
        (*_HEADS, *_ROTARY, *_SCORES, *_TEMPERATURE),
        "read",
        _FUSED,
    ),
)

_MIXTURE = (
    OpKind(
        "route",
        "the top_k experts of each token, best first, and their weights",
        ("x",),
        ("experts", "weights"),
        rules.route,
        ("bias",),
        ("top_k", "router", "normalise", "scale"),
    ),
    OpKind(
        "expert_linear",
        "x @ weight[expert].T + bias[expert] for each chosen expert",
        ("x", "weight", "experts"),
        ("out",),
        rules.expert_linear,
        ("bias",),
        _EXPERTS,
        stages=_SOURCE,
    ),
    OpKind(
        "expert_sum",
        "the weighted sum of the experts' results",
        ("x", "weights"),
        ("out",),
        rules.expert_sum,
        stages=_SOURCE,
    ),
    OpKind(
        "expert_projection",
        "act(norm(x) @ weight[expert].T + bias[expert]) for each chosen expert",
        ("x", "weight", "experts"),
        ("out",),
        rules.expert_projection,
        ("norm", "norm_bias", "bias"),
        (*_EXPERTS, "eps", "norm_kind", "activation", "gated", "limit"),
        stages=_FUSED,
    ),
    OpKind(
        "expert_combine",
        "residual + residual_scale * sum of weights * (x @ weight[expert].T + bias[expert])",
        ("x", "weight", "experts", "weights"),
        ("out",),
        rules.expert_combine,
        ("bias", "residual"),
        (*_EXPERTS, "residual_scale"),
        stages=_FUSED,
    ),
)

OPS: dict[str, OpKind] = {kind.name: kind for kind in (*_DENSE, *_ATTENTION, *_MIXTURE)}

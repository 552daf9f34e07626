"""The attention block of the source graph."""

from dataclasses import replace

from mlxr.compiler.build.build_latent import build_latent
from mlxr.compiler.build.builder import Builder
from mlxr.compiler.build.rope import rope_scale
from mlxr.compiler.formats.stores import KEYS_AND_VALUES
from mlxr.compiler.ir.division import Axis
from mlxr.compiler.ir.ops.attention import Attention, GateHeads
from mlxr.compiler.ir.ops.cache import CacheWrite
from mlxr.compiler.ir.ops.elementwise import Clamp, Scale
from mlxr.compiler.ir.ops.rope import Rope, Temperature
from mlxr.compiler.ir.ops.text_attention import TextAttention
from mlxr.compiler.ir.tensor import layer_prefix
from mlxr.compiler.spec.model import LayerType


def build_attention(b: Builder, index: int, layer: LayerType, x: str) -> str:
    """Adds the attention of one layer.

    Args:
        b: the builder that gets the ops.
        index: the layer's number.
        layer: the layer's properties.
        x: the block's input, [tokens, width], after the norm if the model has one there.

    Returns:
        The result of the output projection, [tokens, hidden].
    """
    a, width, hidden = layer.own_attention, b.columns(x), b.hidden_size
    if a.latent is not None:
        return build_latent(b, index, layer, a.latent, x)
    prefix = f"{layer_prefix(index)}attention"
    heads, kv_heads = Axis("heads", a.num_heads, a.head_dim), Axis("kv_heads", a.num_kv_heads, a.head_dim)
    v_heads, v_dim = replace(kv_heads, size=a.result_dim), a.result_dim if a.result_dim != a.head_dim else None

    def projected(role: str, axis: Axis) -> str:
        bias = f"{prefix}.{role}_bias" if a.qkv_bias else None
        y = b.linear(f"{prefix}.{role}", x, (axis.count * axis.size, width), bias, rows=axis)
        return y if a.qkv_limit is None else b.op(Clamp(a.qkv_limit), f"{prefix}.{role}_clamped", {"x": y})

    q, keys = projected("q", heads), {}
    if b.spec.model.kv_owner(index) == index:
        keys["k"] = projected("k", kv_heads)
        keys["v"] = keys["k"] if a.values_from_keys else projected("v", v_heads)
    q = _queries_or_keys(b, prefix, "q", layer, q, heads)
    if keys:
        keys["k"] = _queries_or_keys(b, prefix, "k", layer, keys["k"], kv_heads)
        keys["v"] = _values(b, prefix, layer, keys["v"])
    if a.temperature is not None:
        temperature = Temperature(a.temperature.beta, a.temperature.original_context, a.temperature.first_position)
        q = b.op(temperature, f"{prefix}.q_tempered", {"x": q, "positions": "positions"})
    bias = f"{prefix}.o_bias" if a.output_bias else None
    results = replace(heads, size=a.result_dim)
    if not a.causal:
        within = TextAttention(a.num_heads, a.num_kv_heads, a.head_dim, a.score_scale, a.sliding_window, None)
        attended = b.op(within, f"{prefix}.attended", {"q": q, **keys, "query_start": "query_start"})
        return b.linear(f"{prefix}.o", attended, (hidden, a.num_heads * a.head_dim), bias, columns=results)
    cache = b.stores(index, KEYS_AND_VALUES)
    if keys:
        write = CacheWrite(num_kv_heads=a.num_kv_heads, head_dim=a.head_dim, v_dim=v_dim)
        b.op_with_outputs(write, f"{prefix}.cache_write", keys | b.of_blocks(index, "slots") | cache, ())
    tables = {name: name for name in ("positions", "query_start", "context_lens")} | b.of_blocks(index, "block_tables")
    sinks = {"sinks": b.vector(f"{prefix}.sinks", a.num_heads, replace(heads, size=1))} if a.sinks else {}
    attention = Attention(
        num_heads=a.num_heads,
        num_kv_heads=a.num_kv_heads,
        head_dim=a.head_dim,
        scale=a.score_scale,
        window=a.sliding_window,
        softcap=a.softcap,
        chunked=a.chunked,
        v_dim=v_dim,
        alibi=a.alibi,
        alibi_heads=0 if a.alibi is None else a.num_heads,
    )
    attended = b.op(attention, f"{prefix}.attended", {"q": q} | tables | cache | sinks)
    attended = _gated(b, prefix, layer, attended, x)
    out = b.linear(f"{prefix}.o", attended, (hidden, a.num_heads * a.result_dim), bias, columns=results)
    # A factor of the values is one of what is made of them.
    return out if a.value_scale is None else b.op(Scale(a.value_scale), f"{prefix}.o_scaled", {"x": out})


def _gated(b: Builder, prefix: str, layer: LayerType, attended: str, x: str) -> str:
    """Attention's result times the gate, which is made of the block's input x; as it is where there is none."""
    a = layer.own_attention
    if a.output_gate is None:
        return attended
    rows = Axis("heads", a.num_heads, a.gate_size)
    gate = b.linear(f"{prefix}.gate", x, (a.num_heads * a.gate_size, b.columns(x)), rows=rows)
    kind = GateHeads(a.num_heads, a.output_gate.activation, 0, a.gate_size)
    return b.op(kind, f"{prefix}.gated", {"x": attended, "gate": gate})


def _values(b: Builder, prefix: str, layer: LayerType, v: str) -> str:
    """The values, [tokens, kv_heads * v_dim], normalised by heads where the layer does that."""
    a, norm = layer.own_attention, layer.own_attention.qk_norm
    if norm is None or not norm.values:
        return v
    name, out, kind, eps = f"{prefix}.v_norm", f"{prefix}.v_normed", norm.kind, norm.eps
    return b.norm(name, out, v, a.result_dim, groups=a.num_kv_heads, kind=kind, eps=eps, weight=False, bias=False)


def _queries_or_keys(b: Builder, prefix: str, role: str, layer: LayerType, x: str, heads: Axis) -> str:
    """Norm and rotation of the queries or the keys, [tokens, heads * head_dim]."""
    norm = layer.own_attention.qk_norm
    if norm is None:
        return _rotated(b, prefix, role, layer, x, heads)
    if norm.after_rope:
        return _normed(b, prefix, role, layer, _rotated(b, prefix, role, layer, x, heads), heads)
    return _rotated(b, prefix, role, layer, _normed(b, prefix, role, layer, x, heads), heads)


def _normed(b: Builder, prefix: str, role: str, layer: LayerType, x: str, heads: Axis) -> str:
    norm, head_dim = layer.own_attention.qk_norm, layer.own_attention.head_dim
    assert norm is not None, "of layers that have such norms"
    width = head_dim if norm.scope == "head" else heads.count * head_dim
    groups = 1 if norm.scope == "all" else heads.count
    name, out = f"{prefix}.{role}_norm", f"{prefix}.{role}_normed"
    axis = None if norm.scope == "head" else heads
    return b.norm(
        name,
        out,
        x,
        width,
        groups=groups,
        kind=norm.kind,
        eps=norm.eps,
        weight=norm.weight,
        bias=norm.bias,
        axis=axis,
    )


def _rotated(b: Builder, prefix: str, role: str, layer: LayerType, x: str, heads: Axis) -> str:
    if layer.rope is None:
        return x
    rope = Rope(
        num_heads=heads.count,
        head_dim=layer.own_attention.head_dim,
        rotary_dim=layer.rotary_dim,
        rope_layout=layer.rope.layout,
        rope_scale=rope_scale(layer.rope, b.spec.model.context),
    )
    frequencies = b.frequencies(layer.rope, layer.rotary_dim)
    return b.op(rope, f"{prefix}.{role}_rotated", {"x": x, "positions": "positions", "frequencies": frequencies})

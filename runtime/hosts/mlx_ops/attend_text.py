"""Attention of whole texts within themselves."""

from itertools import pairwise

import mlx.core as mx
import numpy as np

from mlxr.compiler.ir.ops.text_attention import PackedTextAttention, TextAttention
from mlxr.runtime.hosts.mlx_ops.attend import rotate_heads
from mlxr.runtime.hosts.mlx_ops.table import evaluates
from mlxr.runtime.hosts.mlx_ops.types import ArenaLayer, Inputs, Outputs, f32


@evaluates(TextAttention)
def text_attention(inputs: Inputs, attrs: TextAttention, arena: ArenaLayer | None = None) -> Outputs:
    """softmax(scale q k^T) v of q, k and v [tokens, heads * head_dim] within each text."""
    q, k, v = (f32(inputs[port]) for port in "qkv")
    return {"out": _attend(q, k, v, inputs["query_start"], attrs).astype(inputs["q"].dtype)}


@evaluates(PackedTextAttention)
def packed_text_attention(inputs: Inputs, attrs: PackedTextAttention, arena: ArenaLayer | None = None) -> Outputs:
    """The same of a packed projection, whose queries and keys are rotated."""
    qkv = f32(inputs["qkv"])
    first_key, first_value = (n * attrs.head_dim for n in (attrs.num_heads, attrs.num_heads + attrs.num_kv_heads))
    q = rotate_heads(qkv[:, :first_key], inputs, attrs, attrs.num_heads)
    k = rotate_heads(qkv[:, first_key:first_value], inputs, attrs, attrs.num_kv_heads)
    out = _attend(q, k, qkv[:, first_value:], inputs["query_start"], attrs)
    return {"out": out.astype(inputs["qkv"].dtype)}


def _attend(
    q: mx.array, k: mx.array, v: mx.array, query_start: mx.array, attrs: TextAttention | PackedTextAttention
) -> mx.array:
    starts = np.array(query_start).tolist()
    return mx.concatenate(
        [_attend_one(q[first:last], k[first:last], v[first:last], attrs) for first, last in pairwise(starts)]
    )


def _attend_one(q: mx.array, k: mx.array, v: mx.array, attrs: TextAttention | PackedTextAttention) -> mx.array:
    """One text: q [tokens, heads * head_dim], k and v [tokens, kv_heads * head_dim] -> [tokens, heads * head_dim]."""
    tokens, kv_heads = len(q), attrs.num_kv_heads
    grouped = q.reshape(tokens, kv_heads, -1, attrs.head_dim).transpose(1, 2, 0, 3)
    keys, values = (x.reshape(tokens, kv_heads, 1, attrs.head_dim).transpose(1, 2, 0, 3) for x in (k, v))
    scores = grouped @ keys.swapaxes(-1, -2) * attrs.scale
    if attrs.window is not None:
        places = mx.arange(tokens)
        scores = mx.where(mx.abs(places[:, None] - places) < attrs.window, scores, -mx.inf)
    weights = mx.softmax(scores, axis=-1, precise=True)
    return (weights @ values).transpose(2, 0, 1, 3).reshape(tokens, -1)

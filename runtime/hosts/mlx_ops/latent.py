"""Latent attention: rows of tokens, queries in their space, and attention to them.

Rows are written in place through NumPy views, as by `mlxr.runtime.hosts.mlx_ops.attend`.
"""

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import LATENTS
from mlxr.compiler.ir.ops.latent import (
    HeadMatrices,
    HeadProduct,
    LatentAttention,
    LatentNormWrite,
    LatentQueries,
    LatentRows,
    LatentWrite,
)
from mlxr.compiler.ir.ops.latent_decode import LatentDecode
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES
from mlxr.runtime.hosts.mlx_ops.attend import context_of, pass_token, rotate_pairs, store_rows
from mlxr.runtime.hosts.mlx_ops.table import evaluates
from mlxr.runtime.hosts.mlx_ops.types import ArenaLayer, Inputs, Outputs, f32


@evaluates(LatentWrite)
def latent_write(inputs: Inputs, attrs: LatentWrite, arena: ArenaLayer | None = None) -> Outputs:
    """Stores [norm(latent) | rope(key)] of x [tokens, first + kv_rank + rope_dim]."""
    return _store(inputs, attrs, arena)


@evaluates(LatentNormWrite)
def latent_norm_write(inputs: Inputs, attrs: LatentNormWrite, arena: ArenaLayer | None = None) -> Outputs:
    """The same, and the norm of the first q_rank columns of x."""
    x = inputs["x"]
    normed = mx.fast.rms_norm(f32(x)[:, : attrs.q_rank], f32(inputs["q_norm"]), attrs.eps)
    return {"out": normed.astype(x.dtype)} | _store(inputs, attrs, arena)


@evaluates(HeadProduct)
def head_product(inputs: Inputs, attrs: HeadProduct, arena: ArenaLayer | None = None) -> Outputs:
    """The product of each head of x [tokens, heads * head_dim or more] with its matrix, [tokens, heads * rows]."""
    product = _products(inputs, attrs)
    return {"out": product.reshape(len(product), -1).astype(MLX_DTYPES[str(attrs.dtype)])}


@evaluates(LatentQueries)
def latent_queries(inputs: Inputs, attrs: LatentQueries, arena: ArenaLayer | None = None) -> Outputs:
    """The same, each head followed by its rotated rest: [tokens, heads * (rows + rope_dim)]."""
    rest = _heads(inputs, attrs)[..., attrs.head_dim - attrs.rope_dim :]
    turned = rotate_pairs(rest, inputs, attrs.rope_layout, attrs.rope_scale)
    out = mx.concatenate([_products(inputs, attrs), turned], axis=-1)
    return {"out": out.reshape(len(out), -1).astype(MLX_DTYPES[str(attrs.dtype)])}


@evaluates(LatentAttention)
def latent_attention(inputs: Inputs, attrs: LatentAttention, arena: ArenaLayer | None = None) -> Outputs:
    """The attention of q [tokens, heads * row_dim] over each sequence's rows -> [tokens, heads * kv_rank]."""
    assert arena is not None, "attention needs an arena"
    q = f32(inputs["q"]).reshape(-1, attrs.num_heads, attrs.row_dim)
    if attrs.temperature is not None:
        beta, original = attrs.temperature.beta, attrs.temperature.original_context
        q = q * (1 + beta * mx.log(1 + f32(inputs["positions"] // original)))[:, None, None]
    starts, tables = np.array(inputs["query_start"]), np.array(inputs["block_tables"])
    outs = []
    for seq, context in enumerate(np.array(inputs["context_lens"]).tolist()):
        own = slice(int(starts[seq]), int(starts[seq + 1]))
        rows = context_of(inputs[LATENTS], LATENTS, arena, tables[seq], context)[0]
        scores = q[own] @ rows.T * attrs.scale
        seen = mx.arange(context) <= inputs["positions"][own][:, None, None]
        weights = mx.softmax(mx.where(seen, scores, -mx.inf), axis=-1, precise=True)
        outs.append(weights @ rows[:, : attrs.kv_rank])
    out = mx.concatenate(outs)
    return {"out": out.reshape(len(out), -1).astype(inputs["q"].dtype)} | pass_token(inputs)


@evaluates(LatentDecode)
def latent_decode(inputs: Inputs, attrs: LatentDecode, arena: ArenaLayer | None = None) -> Outputs:
    """Write, queries, attention and the heads' products of q [seqs, heads * head_dim or more] and kv."""
    q, own = inputs["q"], dict(inputs)
    _store(own | {"x": inputs["kv"]}, attrs.write, arena)
    rows = latent_queries(own | {"x": f32(q), "weight": inputs["k_b"]}, attrs.queries, arena)["out"]
    attended = latent_attention(own | {"q": rows, "query_start": mx.arange(len(q) + 1)}, attrs, arena)
    out = head_product({"x": attended["out"], "weight": inputs["v_b"]}, attrs.products, arena)["out"]
    return dict(attended) | {"out": out.astype(q.dtype)}


def _store(inputs: Inputs, attrs: LatentRows, arena: ArenaLayer | None) -> Outputs:
    assert arena is not None, "cache writes need an arena"
    own = f32(inputs["x"])[:, attrs.first : attrs.first + attrs.kv_rank + attrs.rope_dim]
    latent = mx.fast.rms_norm(own[:, : attrs.kv_rank], f32(inputs["kv_norm"]), attrs.eps)
    key = rotate_pairs(own[:, None, attrs.kv_rank :], inputs, attrs.rope_layout, attrs.rope_scale)[:, 0]
    store_rows(mx.concatenate([latent, key], axis=-1)[:, None], LATENTS, inputs, arena)
    return pass_token(inputs)


def _heads(inputs: Inputs, attrs: HeadMatrices) -> mx.array:
    """The heads of x in fp32, [tokens, heads, head_dim]."""
    own = f32(inputs["x"])[:, attrs.skipped : attrs.skipped + attrs.num_heads * attrs.head_dim]
    return own.reshape(-1, attrs.num_heads, attrs.head_dim)


def _products(inputs: Inputs, attrs: HeadMatrices) -> mx.array:
    """Each head's product, [tokens, heads, rows], in fp32."""
    weight = f32(inputs["weight"])
    matrices = weight.reshape(attrs.num_heads, -1, weight.shape[1])
    x = _heads(inputs, attrs)[..., : weight.shape[1]]
    return (x.transpose(1, 0, 2) @ matrices.swapaxes(-1, -2)).transpose(1, 0, 2)

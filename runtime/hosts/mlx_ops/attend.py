"""RoPE, the KV cache and attention.

K and V are written in place through NumPy views, so an arena may be shared with any other host; what is read is
copied out of it, sequence by sequence. Reads and writes happen when the function is called, not lazily.
"""

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import KEYS_AND_VALUES, CacheGeometry, DType
from mlxr.compiler.ir.op_kind import RopeLayout
from mlxr.compiler.ir.ops.attention import (
    Attention,
    GateHeads,
    PackedAttention,
    RopeAttention,
    RopeReadAttention,
    RopeWriteAttention,
)
from mlxr.compiler.ir.ops.cache import CacheWrite, RopeCacheWrite
from mlxr.compiler.ir.ops.packed_heads import PackedHeads
from mlxr.compiler.ir.ops.rope import Rope, Temperature
from mlxr.runtime.hosts.mlx_ops.cache_rows import decode_rows, encode_rows, layer_rows
from mlxr.runtime.hosts.mlx_ops.dense import capped
from mlxr.runtime.hosts.mlx_ops.normalise import normalise
from mlxr.runtime.hosts.mlx_ops.table import evaluate, evaluates
from mlxr.runtime.hosts.mlx_ops.types import ArenaLayer, Inputs, Outputs, f32

_VALUES = KEYS_AND_VALUES[1]


@evaluates(Rope)
def rope(inputs: Inputs, attrs: Rope, arena: ArenaLayer | None = None) -> Outputs:
    """Rotates every head of x [tokens, heads * head_dim]."""
    x = inputs["x"]
    return {"out": rotate_heads(f32(x), inputs, attrs, attrs.num_heads).astype(x.dtype)}


@evaluates(Temperature)
def temperature(inputs: Inputs, attrs: Temperature, arena: ArenaLayer | None = None) -> Outputs:
    """The product of x [tokens, width] and a factor that grows with the position."""
    x = inputs["x"]
    return {"out": _tempered(f32(x), inputs, attrs).astype(x.dtype)}


@evaluates(CacheWrite)
def cache_write(inputs: Inputs, attrs: CacheWrite, arena: ArenaLayer | None = None) -> Outputs:
    """Stores k [tokens, kv_heads * head_dim] and v [tokens, kv_heads * v_dim] in their slots."""
    return _store(inputs["k"], inputs["v"], inputs, arena)


@evaluates(Attention)
def attention(inputs: Inputs, attrs: Attention, arena: ArenaLayer | None = None) -> Outputs:
    """softmax(scale q k^T) v of q [tokens, heads * head_dim] over each sequence's part of the arena."""
    q = inputs["q"]
    return {"out": _attend(f32(q), inputs, attrs, arena).astype(q.dtype)} | pass_token(inputs)


@evaluates(GateHeads)
def gate_heads(inputs: Inputs, attrs: GateHeads, arena: ArenaLayer | None = None) -> Outputs:
    """The heads of x [tokens, heads * head_dim] times the function of their gates."""
    x = inputs["x"]
    return {"out": _gated(f32(x), inputs, attrs).astype(x.dtype)}


@evaluates(RopeCacheWrite)
def rope_cache_write(inputs: Inputs, attrs: RopeCacheWrite, arena: ArenaLayer | None = None) -> Outputs:
    """Rotates the keys of qkv and stores keys and values."""
    return _rotate_and_store(inputs, attrs, arena)


@evaluates(RopeAttention)
def rope_attention(inputs: Inputs, attrs: RopeAttention, arena: ArenaLayer | None = None) -> Outputs:
    """Rotates the queries of qkv and attends over the arena, which holds this step's keys and values already."""
    return _rotate_and_attend(inputs, attrs, arena)


@evaluates(RopeWriteAttention)
def rope_write_attention(inputs: Inputs, attrs: RopeWriteAttention, arena: ArenaLayer | None = None) -> Outputs:
    """Decode: stores the new key and value of each sequence, then attends; token i is sequence i's."""
    seqs, tokens = len(inputs["context_lens"]), len(inputs["qkv"])
    assert seqs == tokens, f"decode has one token a sequence, got {tokens} tokens of {seqs} sequences"
    _rotate_and_store(inputs, attrs, arena)
    return _rotate_and_attend({**inputs, "query_start": mx.arange(seqs + 1)}, attrs, arena)


@evaluates(RopeReadAttention)
def rope_read_attention(inputs: Inputs, attrs: RopeReadAttention, arena: ArenaLayer | None = None) -> Outputs:
    """Decode: attends to what an earlier layer stored; token i is sequence i's."""
    return _rotate_and_attend({**inputs, "query_start": mx.arange(len(inputs["qkv"]) + 1)}, attrs, arena)


def _rotate_and_store(inputs: Inputs, attrs: PackedHeads, arena: ArenaLayer | None) -> Outputs:
    _, k, v = _parts(inputs, attrs)
    return _store(rotate_heads(k, inputs, attrs, attrs.num_kv_heads), v, inputs, arena)


def _rotate_and_attend(inputs: Inputs, attrs: PackedAttention, arena: ArenaLayer | None) -> Outputs:
    q, _, _ = _parts(inputs, attrs)
    q = _tempered(rotate_heads(q, inputs, attrs, attrs.num_heads), inputs, attrs.temperature)
    out = _attend(q, inputs, attrs, arena)
    if attrs.gate is not None:
        out = _gated(out, inputs, GateHeads(attrs.num_heads, attrs.gate, attrs.gate_first, attrs.gate_size))
    return {"out": out.astype(inputs["qkv"].dtype)} | pass_token(inputs)


def _parts(inputs: Inputs, attrs: PackedHeads) -> tuple[mx.array, mx.array, mx.array]:
    """q, k and v of the packed projection, in fp32; normalised, if the op does that."""
    first_key, first_value = (n * attrs.head_dim for n in (attrs.num_heads, attrs.num_heads + attrs.num_kv_heads))
    qkv = f32(_normed(inputs, attrs))
    return (
        qkv[:, :first_key],
        qkv[:, first_key:first_value],
        qkv[:, first_value : first_value + attrs.num_kv_heads * attrs.value_dim],
    )


def _normed(inputs: Inputs, attrs: PackedHeads) -> mx.array:
    """The packed projection with its heads normalised, if the op does that."""
    qkv = inputs["qkv"]
    if not isinstance(attrs, PackedAttention) or attrs.norm_before is None:
        return qkv
    weights = {port: inputs[port] for port in ("q_norm", "k_norm") if port in inputs}
    if isinstance(attrs, RopeReadAttention):
        eps, weight = attrs.norm_before.eps, weights.get("q_norm")
        return normalise(f32(qkv), weight, None, "rms", eps, attrs.num_heads).astype(qkv.dtype)
    return evaluate(attrs.norm_before, {"qkv": qkv} | weights)["out"]


def _tempered(q: mx.array, inputs: Inputs, temperature: Temperature | None) -> mx.array:
    """Queries times their growth with their position."""
    if temperature is None:
        return q
    positions = inputs["positions"] + temperature.first_position
    return q * (1 + temperature.beta * mx.log(1 + f32(positions // temperature.original_context)))[:, None]


def _gated(x: mx.array, inputs: Inputs, gate: GateHeads) -> mx.array:
    numbers = f32(inputs["gate"])[:, gate.first : gate.first + gate.num_heads * gate.size]
    factors = mx.sigmoid(numbers) if gate.kind == "sigmoid" else mx.logaddexp(numbers, 0.0)
    return (x.reshape(len(x), gate.num_heads, -1) * factors.reshape(len(x), gate.num_heads, -1)).reshape(x.shape)


def rotate_heads(x: mx.array, inputs: Inputs, attrs: Rope | PackedHeads, num_heads: int) -> mx.array:
    """Heads of x [tokens, num_heads * head_dim], rotated; x itself where the layer rotates nothing."""
    rotary_dim = attrs.rotary_dim
    if rotary_dim == 0:
        return x
    heads = x.reshape(-1, num_heads, attrs.head_dim)
    rotated, passed = heads[..., :rotary_dim], heads[..., rotary_dim:]
    rotated = rotate_pairs(rotated, inputs, attrs.rope_layout, attrs.rope_scale)
    return mx.concatenate([rotated, passed], axis=-1).reshape(x.shape)


def rotate_pairs(heads: mx.array, inputs: Inputs, layout: RopeLayout, scale: float) -> mx.array:
    """Heads [tokens, heads, rotary_dim], rotated by their positions."""
    angles = (f32(inputs["positions"])[:, None] * inputs["frequencies"])[:, None, :]
    cos, sin = mx.cos(angles) * scale, mx.sin(angles) * scale
    if layout == "interleaved":
        a, b = heads[..., 0::2], heads[..., 1::2]
        return mx.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(heads.shape)
    a, b = mx.split(heads, 2, axis=-1)
    return mx.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _store(k: mx.array, v: mx.array, inputs: Inputs, place: ArenaLayer | None) -> Outputs:
    assert place is not None, "cache writes need an arena"
    for port, new in zip(KEYS_AND_VALUES, (k, v), strict=True):
        store_rows(new.reshape(len(new), place.cache.num_kv_heads, -1), port, inputs, place)
    return pass_token(inputs)


def store_rows(new: mx.array, port: str, inputs: Inputs, place: ArenaLayer) -> None:
    """Stores rows [tokens, kv_heads, head_dim] of one store in their slots."""
    cache, slots = place.cache, _indices(inputs["slots"])
    rows = layer_rows(inputs[port], cache.layout, place.place(port))
    rows[slots // cache.block_size, slots % cache.block_size] = encode_rows(new, str(row_type(cache, port)))


def _attend(q: mx.array, inputs: Inputs, attrs: Attention | PackedAttention, place: ArenaLayer | None) -> mx.array:
    assert place is not None, "attention needs an arena"
    starts, tables = _indices(inputs["query_start"]), _indices(inputs["block_tables"])
    outs = []
    for seq, context in enumerate(_indices(inputs["context_lens"]).tolist()):
        own = slice(int(starts[seq]), int(starts[seq + 1]))
        k, v = (context_of(inputs[port], port, place, tables[seq], context) for port in KEYS_AND_VALUES)
        positions = inputs["positions"][own]
        # What left every window may be in no block any more.
        first = 0 if attrs.window is None else max(0, int(positions[0]) + 1 - attrs.window)
        outs.append(_attend_one(q[own], k[:, first:], v[:, first:], positions, inputs.get("sinks"), attrs, first))
    return mx.concatenate(outs)


def context_of(array: mx.array, port: str, place: ArenaLayer, table: npt.NDArray[np.int32], context: int) -> mx.array:
    """The rows of a store of a sequence, [kv_heads, context, head_dim] in fp32."""
    geometry = place.cache
    num_blocks = -(-context // geometry.block_size)
    blocks = np.arange(num_blocks) if geometry.mode == "contiguous" else table[:num_blocks]
    rows = layer_rows(array, geometry.layout, place.place(port))[blocks]
    rows = rows.reshape(-1, geometry.num_kv_heads, rows.shape[-1])[:context]
    return decode_rows(rows, str(row_type(geometry, port))).transpose(1, 0, 2)


def row_type(cache: CacheGeometry, port: str) -> DType:
    """The type of the rows of a store."""
    return cache.value_dtype if port == _VALUES else cache.dtype


def _attend_one(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    positions: mx.array,
    sinks: mx.array | None,
    attrs: Attention | PackedAttention,
    first: int,
) -> mx.array:
    """One sequence, whose keys begin at position `first`.

    q [tokens, heads * head_dim], k [kv_heads, keys, head_dim], v [kv_heads, keys, v_dim], sinks [heads] ->
    [tokens, heads * v_dim].
    """
    tokens, kv_heads, head_dim = len(positions), attrs.num_kv_heads, attrs.head_dim
    ratio = attrs.num_heads // kv_heads
    grouped = q.reshape(tokens, kv_heads, ratio, head_dim).transpose(1, 2, 0, 3)
    scores = grouped @ k[:, None].swapaxes(-1, -2) * attrs.scale
    scores = capped(scores, attrs.softcap)
    keys = first + mx.arange(k.shape[1])
    if attrs.biases is not None:
        slopes = mx.array(attrs.biases.slopes(attrs.num_heads)).reshape(kv_heads, ratio, 1, 1)
        scores = scores - slopes * f32(positions[:, None] - keys)
    seen = keys <= positions[:, None]
    if attrs.window is not None:
        last = positions[:, None]
        seen = seen & (keys >= last // attrs.window * attrs.window if attrs.chunked else keys > last - attrs.window)
    scores = mx.where(seen, scores, -mx.inf)
    if sinks is not None:  # one more score, whose share of the softmax goes to no value
        more = mx.broadcast_to(f32(sinks).reshape(kv_heads, ratio, 1, 1), (*scores.shape[:-1], 1))
        scores = mx.concatenate([scores, more], axis=-1)
    weights = mx.softmax(scores, axis=-1, precise=True)[..., : k.shape[1]]
    return (weights @ v[:, None]).transpose(2, 0, 1, 3).reshape(tokens, -1)


def _indices(array: mx.array) -> npt.NDArray[np.int32]:
    return np.array(array)


def pass_token(inputs: Inputs) -> Outputs:
    """The token that the op passes on; accesses here are in order by themselves."""
    return {"token": inputs["token"]} if "token" in inputs else {}

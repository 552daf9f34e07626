"""Norms: of the residual stream, and of queries and keys."""

import mlx.core as mx

from mlxr.compiler.ir.ops.norm import Norm, NormRows, QkNorm
from mlxr.compiler.ir.ops.product import AddedBlock, InputNorm
from mlxr.compiler.ir.ops.rope import Rope
from mlxr.compiler.ir.ops.shared_norm import MeanSquares, NormOfPart, QkMeanSquares
from mlxr.runtime.hosts.mlx_ops.table import evaluate, evaluates
from mlxr.runtime.hosts.mlx_ops.types import ArenaLayer, Inputs, Outputs, f32


@evaluates(Norm)
def norm(inputs: Inputs, attrs: Norm, arena: ArenaLayer | None = None) -> Outputs:
    """The sum residual + residual_scale * norm of x: x [tokens, width], weight and bias [width] or [width / groups]."""
    x = inputs["x"]
    y = normalise(f32(x), inputs.get("weight"), inputs.get("bias"), attrs.kind, attrs.eps, attrs.groups)
    y = add_residual(y, inputs, attrs.residual_scale)
    if "scale" in inputs:
        y = y * f32(inputs["scale"])
    return {"out": y.astype(x.dtype)}


@evaluates(NormRows)
def norm_rows(inputs: Inputs, attrs: NormRows, arena: ArenaLayer | None = None) -> Outputs:
    """The norms of the rows x[rows] of x [tokens, width], in f32."""
    x = f32(inputs["x"][inputs["rows"]])
    return {"out": normalise(x, inputs.get("weight"), inputs.get("bias"), attrs.kind, attrs.eps)}


@evaluates(QkNorm)
def qk_norm(inputs: Inputs, attrs: QkNorm, arena: ArenaLayer | None = None) -> Outputs:
    """The queries and keys of qkv [tokens, (heads + 2 kv_heads) * head_dim] normalised; values, too, or as they are."""
    qkv, head_dim = inputs["qkv"], attrs.head_dim
    rotation = {port: inputs[port] for port in ("positions", "frequencies") if port in inputs}
    parts: list[mx.array] = []
    start = 0
    for port, heads in (("q_norm", attrs.num_heads), ("k_norm", attrs.num_kv_heads)):
        x = f32(qkv[:, start : start + heads * head_dim])
        if rotation:
            rope = Rope(heads, head_dim, attrs.rotary_dim, attrs.rope_layout, attrs.rope_scale)
            x = evaluate(rope, {"x": x} | rotation)["out"]
        groups = 1 if attrs.scope == "all" else heads
        if "mean_squares" in inputs:
            y = by_mean_square(x, inputs["mean_squares"][:, len(parts)], inputs[port], attrs.eps)
        else:
            y = normalise(x, inputs.get(port), inputs.get(f"{port}_bias"), attrs.kind, attrs.eps, groups)
        parts.append(y.astype(qkv.dtype))
        start += heads * head_dim
    width = attrs.num_kv_heads * (attrs.v_dim or head_dim)
    v = qkv[:, start - width : start] if attrs.values_from_keys else qkv[:, start : start + width]
    if attrs.norms_values:
        v = normalise(f32(v), None, None, attrs.kind, attrs.eps, attrs.num_kv_heads).astype(qkv.dtype)
    return {"out": mx.concatenate([*parts, v], axis=-1)}


@evaluates(MeanSquares)
def mean_squares(inputs: Inputs, attrs: MeanSquares, arena: ArenaLayer | None = None) -> Outputs:
    """What q and k, [tokens, columns of this rank], add to the mean squares of all ranks, [tokens, 2] f32."""
    columns = [mx.sum(f32(inputs[port]) ** 2, axis=-1) for port in ("q", "k" if "k" in inputs else "q")]
    counted = (1 / attrs.q_width, attrs.counts_keys / max(1, attrs.k_width))
    return {"out": mx.stack([x * factor for x, factor in zip(columns, counted, strict=True)], axis=-1)}


@evaluates(QkMeanSquares)
def qk_mean_squares(inputs: Inputs, attrs: QkMeanSquares, arena: ArenaLayer | None = None) -> Outputs:
    """The same of qkv [tokens, (heads + 2 kv_heads) * head_dim]."""
    first, end = attrs.num_heads * attrs.head_dim, (attrs.num_heads + attrs.num_kv_heads) * attrs.head_dim
    parts = {"q": inputs["qkv"][:, :first], "k": inputs["qkv"][:, first:end]}
    return evaluate(MeanSquares(attrs.q_width, attrs.k_width, attrs.counts_keys), parts)


@evaluates(NormOfPart)
def norm_of_part(inputs: Inputs, attrs: NormOfPart, arena: ArenaLayer | None = None) -> Outputs:
    """The norm of x [tokens, columns of this rank] by a column of mean_squares [tokens, 2]."""
    x = inputs["x"]
    y = by_mean_square(f32(x), inputs["mean_squares"][:, attrs.column], inputs["weight"], attrs.eps)
    return {"out": y.astype(x.dtype)}


def by_mean_square(x: mx.array, mean_square: mx.array, weight: mx.array, eps: float) -> mx.array:
    """RMS norm of x [tokens, width] in fp32 by the mean squares of its rows, [tokens]."""
    return x * mx.rsqrt(mean_square[:, None] + eps) * f32(weight)


def normalise(
    x: mx.array, weight: mx.array | None, bias: mx.array | None, kind: str, eps: float, groups: int = 1
) -> mx.array:
    """Norm of x [tokens, width] in fp32, each of `groups` equal pieces of a row by itself.

    A weight or a bias [width / groups] is that of every piece.
    """
    pieces = x.reshape(x.shape[0], groups, x.shape[1] // groups)
    if kind == "layer":
        pieces = pieces - mx.mean(pieces, axis=-1, keepdims=True)
    pieces = pieces * mx.rsqrt(mx.mean(pieces * pieces, axis=-1, keepdims=True) + eps)

    def of_pieces(parameter: mx.array) -> mx.array:
        return f32(parameter).reshape((groups, -1) if parameter.size == x.shape[1] else (1, -1))

    if weight is not None:
        pieces = pieces * of_pieces(weight)
    if bias is not None:
        pieces = pieces + of_pieces(bias)
    return pieces.reshape(x.shape)


def add_residual(y: mx.array, inputs: Inputs, residual_scale: float) -> mx.array:
    """The sum residual + residual_scale * y, or y where no residual is bound."""
    return f32(inputs["residual"]) + residual_scale * y if "residual" in inputs else y


def normalise_input(x: mx.array, inputs: Inputs, norm: InputNorm | None) -> mx.array:
    """The norm before a product, of x [tokens, width] in fp32; x itself without one."""
    if norm is None:
        return x
    return normalise(x, inputs.get("norm"), inputs.get("norm_bias"), norm.kind, norm.eps)


def add_block(inputs: Inputs, added: AddedBlock | None) -> mx.array:
    """The input x of a product, [tokens, width], with what a block adds to it; x itself where that is nothing."""
    x = inputs["x"]
    if added is None:
        return x

    def normed(y: mx.array, weight: str) -> mx.array:
        return normalise(f32(y), inputs[weight], None, "rms", added.eps)

    total = inputs["added"]
    if "second" in inputs:
        total = normed(total, "own_norm") + normed(inputs["second"], "second_norm")
    stream = f32(x) + added.factor * normed(total, "added_norm")
    if "added_scale" in inputs:
        stream = stream * f32(inputs["added_scale"])
    return stream.astype(x.dtype)

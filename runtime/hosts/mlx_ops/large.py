"""The ops that hosts give to MLX for large batches: MLX's matrix kernels, and as few passes over memory as possible.

They are as exact as the op functions, except that numbers between two MLX ops have the type of the arrays: 16 bits
where activations, weight and result all have 16 bits. Sums are in fp32.
"""

import functools
from collections.abc import Callable

import mlx.core as mx

from mlxr.compiler.artifact import DType
from mlxr.compiler.ir.op_kind import OpKind
from mlxr.compiler.ir.ops.attention import RopeAttention
from mlxr.compiler.ir.ops.linear import Linear, Projection
from mlxr.compiler.ir.ops.product import Finish, InputNorm, Product
from mlxr.runtime.hosts.mlx_ops.activations import activate, activate_gated
from mlxr.runtime.hosts.mlx_ops.dense import finish_projection
from mlxr.runtime.hosts.mlx_ops.types import Inputs, f32
from mlxr.runtime.mlx_arrays import MLX_DTYPES

_ELEMENTWISE = ("bias", "gate", "residual")


def evaluate_projection(inputs: Inputs, attrs: Product) -> mx.array:
    """A `linear` or `projection` op.

    Args:
        inputs: as the op's; a quantised weight as numbers.
        attrs: the op's.

    Returns:
        [rows, out], row-major.
    """
    x, weight, out, finish = inputs["x"], inputs["weight"], MLX_DTYPES[str(attrs.dtype)], attrs.finish
    compute = compute_type(x.dtype, weight.dtype, out)
    x = _normalised((x[inputs["rows"]] if "rows" in inputs else x).astype(compute), inputs, attrs.norm)
    columns = weight.astype(compute).T
    added = _added_by_matmul(inputs, finish, compute, out)
    if added is not None:
        return mx.addmm(inputs[added], x, columns, alpha=_factor(finish, added))
    y = x @ columns
    if (
        all(port not in inputs for port in _ELEMENTWISE)
        and finish.activation is None
        and finish.out_cap is None
        and finish.out_scale == 1
    ):
        return y.astype(out)
    finisher = _finisher(finish, attrs.dtype, mx.default_device().type)
    halves = 2 if finish.gated else 1
    sums: list[mx.array] = list(mx.split(y, halves, axis=-1))
    biases: list[mx.array] = list(mx.split(inputs["bias"], halves)) if "bias" in inputs else []
    return finisher(sums, biases, {port: inputs[port] for port in ("gate", "residual") if port in inputs})


def compute_type(x: mx.Dtype, weight: mx.Dtype, out: mx.Dtype) -> mx.Dtype:
    """The type in which a projection normalises and multiplies x: f32, unless x, weight and result are of one type."""
    return x if x == weight == out else mx.float32


def evaluate_attention(inputs: Inputs, attrs: RopeAttention) -> mx.array:
    """A `rope_attention` op of one sequence that sees all its context.

    It takes as few MLX ops as possible, because each costs CPU time in every layer.

    Args:
        inputs: queries [1, tokens, heads, head_dim] rotated, not scaled; keys and values
            [1, kv_heads, context, head_dim], whose last are the queries' own; optional sinks [heads]. All of one type,
            row-major.
        attrs: the op's; no soft cap.

    Returns:
        [tokens, heads * head_dim], row-major.
    """
    queries = inputs["queries"]
    _, tokens, heads, head_dim = queries.shape
    assert (heads, head_dim) == (attrs.num_heads, attrs.head_dim), f"queries of {heads} heads of {head_dim}"
    # MLX's kernels take heads at any stride. Its result lies as the queries do, so that turning it back is a view.
    attended = mx.fast.scaled_dot_product_attention(
        queries.transpose(0, 2, 1, 3),
        inputs["keys"],
        inputs["values"],
        scale=attrs.scale,
        mask="causal",
        sinks=inputs.get("sinks"),
    )
    # The result is row-major, however MLX laid out its own: where the heads of a token are adjacent in memory the
    # reshape is a view, and elsewhere it copies.
    return attended.transpose(0, 2, 1, 3).reshape(tokens, heads * head_dim)


def evaluate_large(attrs: OpKind, inputs: Inputs) -> mx.array:
    """The op's `out`, of a kind that has a function here."""
    if isinstance(attrs, Linear | Projection):
        return evaluate_projection(inputs, attrs)
    assert isinstance(attrs, RopeAttention), f"no host gives {attrs.name} to MLX"
    return evaluate_attention(inputs, attrs)


def _normalised(x: mx.array, inputs: Inputs, norm: InputNorm | None) -> mx.array:
    """The norm of x in one pass, in fp32 and rounded to x's type; its weight and bias are rounded to that before."""
    if norm is None:
        return x
    weight = inputs["norm"].astype(x.dtype)  # hosts have cast it already: see hosts/mlx/norms.py
    if norm.kind != "layer":
        assert "norm_bias" not in inputs, "only a layer norm has a bias"
        return mx.fast.rms_norm(x, weight, norm.eps)
    bias = inputs["norm_bias"].astype(x.dtype) if "norm_bias" in inputs else None
    return mx.fast.layer_norm(x, weight, bias, norm.eps)


def _added_by_matmul(inputs: Inputs, finish: Finish, compute: mx.Dtype, out: mx.Dtype) -> str | None:
    """The input that the matmul itself adds, in fp32, where nothing else is done to its sums; None if there is more."""
    ports = [port for port in _ELEMENTWISE if port in inputs]
    if len(ports) != 1 or ports[0] == "gate" or finish.activation is not None or finish.out_cap is not None:
        return None
    port = ports[0]
    # out_scale is a factor of the bias too.
    same = inputs[port].dtype == compute == out and (port != "bias" or finish.out_scale == 1)
    return port if same else None


def _factor(finish: Finish, added: str) -> float:
    """The factor of a matmul's sums to which this input is added."""
    return finish.out_scale * finish.residual_scale if added == "residual" else 1.0


Finisher = Callable[[list[mx.array], list[mx.array], dict[str, mx.array]], mx.array]
"""Called with sums and biases (both of gates, then of ups, where gated) and the other inputs of a projection."""


@functools.cache
def _finisher(finish: Finish, dtype: DType, device: mx.DeviceType) -> Finisher:
    """What follows a matmul, as one kernel on a GPU (on a CPU MLX would need a C++ compiler for it)."""
    kind = finish.activation

    def finisher(sums: list[mx.array], biases: list[mx.array], inputs: dict[str, mx.array]) -> mx.array:
        y = [f32(part) for part in sums]
        if biases:
            y = [part + f32(bias) for part, bias in zip(y, biases, strict=True)]
        if kind is not None:
            y[0] = activate_gated(y[0], y[1], kind, finish.limit) if len(y) > 1 else activate(y[0], kind)
        return finish_projection(y[0], inputs, finish).astype(MLX_DTYPES[str(dtype)])

    return mx.compile(finisher, shapeless=True) if device == mx.gpu else finisher

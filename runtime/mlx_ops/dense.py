"""Ops over rows: embedding, norm, projections and elementwise ops."""

import math

import mlx.core as mx

from mlxr.runtime.arena import Arena
from mlxr.runtime.mlx_arrays import MLX_DTYPES
from mlxr.runtime.mlx_ops.types import Attrs, Inputs, Outputs, f32


def embed(inputs: Inputs, attrs: Attrs, arena: Arena | None = None) -> Outputs:
    """Rows of the table: ids [tokens], table [vocab, hidden] -> [tokens, hidden]."""
    return {"out": inputs["table"][inputs["ids"]].astype(MLX_DTYPES[attrs["dtype"]])}


def rms_norm(inputs: Inputs, attrs: Attrs, arena: Arena | None = None) -> Outputs:
    """RMSNorm, x / rms(x) * weight: x [tokens, width], weight [width]."""
    x = inputs["x"]
    return {"out": _normalise(f32(x), inputs["weight"], attrs["eps"]).astype(x.dtype)}


def linear(inputs: Inputs, attrs: Attrs, arena: Arena | None = None) -> Outputs:
    """The product x @ weight.T + bias: x [tokens, width], weight [features, width], bias [features]."""
    y = f32(inputs["x"]) @ f32(inputs["weight"]).T
    if "bias" in inputs:
        y = y + f32(inputs["bias"])
    return {"out": y.astype(MLX_DTYPES[attrs["dtype"]])}


def activation(inputs: Inputs, attrs: Attrs, arena: Arena | None = None) -> Outputs:
    """The activation function of every element."""
    x = inputs["x"]
    return {"out": _activate(f32(x), attrs["kind"]).astype(x.dtype)}


def multiply(inputs: Inputs, attrs: Attrs, arena: Arena | None = None) -> Outputs:
    """The elementwise product a * b."""
    return {"out": (f32(inputs["a"]) * f32(inputs["b"])).astype(inputs["a"].dtype)}


def add(inputs: Inputs, attrs: Attrs, arena: Arena | None = None) -> Outputs:
    """The elementwise sum a + b."""
    return {"out": (f32(inputs["a"]) + f32(inputs["b"])).astype(inputs["a"].dtype)}


def gather_rows(inputs: Inputs, attrs: Attrs, arena: Arena | None = None) -> Outputs:
    """The rows x[rows] of x [tokens, width]."""
    return {"out": inputs["x"][inputs["rows"]]}


def split(inputs: Inputs, attrs: Attrs, arena: Arena | None = None) -> Outputs:
    """Columns q, k and v of x [tokens, q + k + v]."""
    q, k = attrs["q"], attrs["k"]
    x = inputs["x"]
    return {"q": x[:, :q], "k": x[:, q : q + k], "v": x[:, q + k :]}


def projection(inputs: Inputs, attrs: Attrs, arena: Arena | None = None) -> Outputs:
    """act(norm(x[rows]) @ weight.T + bias) + residual.

    x [tokens, width], weight [features, width]; optional norm [width], bias [features], residual [rows, out], rows
    [rows]. With an activation the weight's rows are the gate's, then the up projection's: act(gate) * up.
    """
    return {"out": _project(inputs, attrs, mx.float32)}


def evaluate_projection(inputs: Inputs, attrs: Attrs) -> mx.array:
    """A `linear` or `projection` op as a host runs it that gives large matmuls to MLX.

    As exact as the op function, save that the matmul's operands and result are 16-bit where activations, weight and
    result all have the same such type: what MLX's matrix kernels are fast at, with sums in fp32.
    """
    x, weight = inputs["x"].dtype, inputs["weight"].dtype
    compute = x if x == weight == MLX_DTYPES[attrs["dtype"]] else mx.float32
    return _project(inputs, {"eps": None, "activation": None, **attrs}, compute)


def _project(inputs: Inputs, attrs: Attrs, compute: mx.Dtype) -> mx.array:
    x = f32(inputs["x"][inputs["rows"]] if "rows" in inputs else inputs["x"])
    if "norm" in inputs:
        x = _normalise(x, inputs["norm"], attrs["eps"])
    y = f32(mx.matmul(x.astype(compute), inputs["weight"].astype(compute).T))
    if "bias" in inputs:
        y = y + f32(inputs["bias"])
    if attrs["activation"] is not None:
        gate, up = mx.split(y, 2, axis=-1)
        y = _activate(gate, attrs["activation"]) * up
    if "residual" in inputs:
        y = y + f32(inputs["residual"])
    return y.astype(MLX_DTYPES[attrs["dtype"]])


def _normalise(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    return x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + eps) * f32(weight)


def _activate(x: mx.array, kind: str) -> mx.array:
    if kind == "silu":
        return x * mx.sigmoid(x)
    if kind == "gelu":
        return x * 0.5 * (1 + mx.erf(x / math.sqrt(2)))
    assert kind == "gelu_tanh", f"unknown activation {kind!r}; the spec allows silu, gelu and gelu_tanh"
    return x * 0.5 * (1 + mx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))

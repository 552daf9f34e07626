"""Ops over rows: embedding, projections and elementwise ops."""

import mlx.core as mx

from mlxr.runtime.arena import Arena
from mlxr.runtime.mlx_arrays import MLX_DTYPES
from mlxr.runtime.mlx_ops.activations import activate, activate_gated, activate_projected
from mlxr.runtime.mlx_ops.normalise import add_residual, normalise_input
from mlxr.runtime.mlx_ops.types import Attrs, Inputs, Outputs, f32


def embed(inputs: Inputs, attrs: Attrs, arena: Arena | None = None) -> Outputs:
    """Scaled rows of the table: ids [tokens], table [vocab, hidden] -> [tokens, hidden]."""
    rows = inputs["table"][inputs["ids"]]
    scaled = rows if attrs["scale"] == 1 else f32(rows) * attrs["scale"]
    return {"out": scaled.astype(MLX_DTYPES[attrs["dtype"]])}


def linear(inputs: Inputs, attrs: Attrs, arena: Arena | None = None) -> Outputs:
    """The product x @ weight.T + bias: x [tokens, width], weight [features, width], bias [features]."""
    y = f32(inputs["x"]) @ f32(inputs["weight"]).T
    if "bias" in inputs:
        y = y + f32(inputs["bias"])
    return {"out": y.astype(MLX_DTYPES[attrs["dtype"]])}


def activation(inputs: Inputs, attrs: Attrs, arena: Arena | None = None) -> Outputs:
    """The activation function of every element."""
    x = inputs["x"]
    return {"out": activate(f32(x), attrs["kind"]).astype(x.dtype)}


def multiply(inputs: Inputs, attrs: Attrs, arena: Arena | None = None) -> Outputs:
    """The elementwise product a * b."""
    return {"out": (f32(inputs["a"]) * f32(inputs["b"])).astype(inputs["a"].dtype)}


def swiglu_oai(inputs: Inputs, attrs: Attrs, arena: Arena | None = None) -> Outputs:
    """(b + 1) * a * sigmoid(1.702 a), with the gate a at most the limit and b within +- limit."""
    gated = activate_gated(f32(inputs["a"]), f32(inputs["b"]), "swiglu_oai", attrs["limit"])
    return {"out": gated.astype(inputs["a"].dtype)}


def add(inputs: Inputs, attrs: Attrs, arena: Arena | None = None) -> Outputs:
    """The elementwise sum a + alpha * b."""
    return {"out": (f32(inputs["a"]) + attrs["alpha"] * f32(inputs["b"])).astype(inputs["a"].dtype)}


def scale(inputs: Inputs, attrs: Attrs, arena: Arena | None = None) -> Outputs:
    """The product factor * x."""
    x = inputs["x"]
    return {"out": (f32(x) * attrs["factor"]).astype(x.dtype)}


def soft_cap(inputs: Inputs, attrs: Attrs, arena: Arena | None = None) -> Outputs:
    """The soft cap, cap * tanh(x / cap), of every element."""
    x = inputs["x"]
    return {"out": capped(f32(x), attrs["cap"]).astype(x.dtype)}


def capped(x: mx.array, cap: float | None) -> mx.array:
    """The soft cap, cap * tanh(x / cap); x itself where there is no cap."""
    return x if cap is None else cap * mx.tanh(x / cap)


def gate_rows(inputs: Inputs, attrs: Attrs, arena: Arena | None = None) -> Outputs:
    """Rows of x [tokens, width], each times the sigmoid of its gate [tokens, 1]."""
    x = inputs["x"]
    return {"out": (f32(x) * mx.sigmoid(f32(inputs["gate"]))).astype(x.dtype)}


def gather_rows(inputs: Inputs, attrs: Attrs, arena: Arena | None = None) -> Outputs:
    """The rows x[rows] of x [tokens, width]."""
    return {"out": inputs["x"][inputs["rows"]]}


def split(inputs: Inputs, attrs: Attrs, arena: Arena | None = None) -> Outputs:
    """Columns q, k and v of x [tokens, q + k + v]."""
    q, k = attrs["q"], attrs["k"]
    x = inputs["x"]
    return {"q": x[:, :q], "k": x[:, q : q + k], "v": x[:, q + k :]}


def projection(inputs: Inputs, attrs: Attrs, arena: Arena | None = None) -> Outputs:
    """The sum residual + residual_scale * sigmoid(gate) * y of a projection y.

    y = act(norm(x[rows]) @ weight.T + bias) * out_scale, soft capped.

    x [tokens, width], weight [features, width]; optional norm and norm_bias [width], bias [features], residual [rows,
    out], gate [rows, 1], rows [rows]. Where gated, the weight's rows are the gate's, then the up projection's.
    """
    return {"out": _project(inputs, attrs, mx.float32)}


def evaluate_projection(inputs: Inputs, attrs: Attrs) -> mx.array:
    """A `linear` or `projection` op as a host runs it that gives large matmuls to MLX.

    As exact as the op function, save that the matmul's operands and result are 16-bit where activations, weight and
    result all have the same such type: what MLX's matrix kernels are fast at, with sums in fp32.
    """
    x, weight = inputs["x"].dtype, inputs["weight"].dtype
    compute = x if x == weight == MLX_DTYPES[attrs["dtype"]] else mx.float32
    return _project(inputs, {**_PLAIN, **attrs}, compute)


_PLAIN = {"activation": None, "gated": False, "limit": None, "residual_scale": 1.0, "out_scale": 1.0, "out_cap": None}
"""Attributes that a linear op lacks."""


def _project(inputs: Inputs, attrs: Attrs, compute: mx.Dtype) -> mx.array:
    x = f32(inputs["x"][inputs["rows"]] if "rows" in inputs else inputs["x"])
    x = normalise_input(x, inputs, attrs)
    y = f32(mx.matmul(x.astype(compute), inputs["weight"].astype(compute).T))
    if "bias" in inputs:
        y = y + f32(inputs["bias"])
    y = activate_projected(y, attrs["activation"], attrs["gated"], attrs["limit"])
    y = capped(y * attrs["out_scale"], attrs["out_cap"])
    if "gate" in inputs:
        y = y * mx.sigmoid(f32(inputs["gate"]))
    return add_residual(y, inputs, attrs).astype(MLX_DTYPES[attrs["dtype"]])

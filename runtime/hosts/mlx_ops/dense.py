"""Ops over rows: embedding, projections and elementwise ops."""

import mlx.core as mx

from mlxr.compiler.ir.ops.attention import Split, SplitQk
from mlxr.compiler.ir.ops.elementwise import (
    Activation,
    Add,
    Clamp,
    ClampedGate,
    Multiply,
    MultiplyColumns,
    Scale,
    ScaleBy,
    SoftCap,
    SwigluOai,
    Xielu,
)
from mlxr.compiler.ir.ops.linear import Linear, Projection
from mlxr.compiler.ir.ops.product import Finish
from mlxr.compiler.ir.ops.projection_sum import ProjectionSum
from mlxr.compiler.ir.ops.rows import Embed, GateRows, GatherRows
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES
from mlxr.runtime.hosts.mlx_ops.activations import activate, activate_gated, activate_projected, xielu
from mlxr.runtime.hosts.mlx_ops.lift import lifted
from mlxr.runtime.hosts.mlx_ops.normalise import add_block, add_residual, normalise_input
from mlxr.runtime.hosts.mlx_ops.table import evaluates
from mlxr.runtime.hosts.mlx_ops.types import ArenaLayer, Inputs, Outputs, f32


@evaluates(Embed)
def embed(inputs: Inputs, attrs: Embed, arena: ArenaLayer | None = None) -> Outputs:
    """Scaled rows of the table: ids [tokens], table [vocab, hidden], residual like the result -> [tokens, hidden]."""
    table, ids = inputs["table"], inputs["ids"]
    if attrs.first_row is None:
        rows = table[ids]
    else:
        own = (ids >= attrs.first_row) & (ids < attrs.first_row + table.shape[0])
        rows = mx.where(own[:, None], table[mx.where(own, ids - attrs.first_row, 0)], mx.zeros((), table.dtype))
    scaled = rows if attrs.scale == 1 else f32(rows) * attrs.scale
    if "residual" in inputs:
        scaled = f32(inputs["residual"]) + f32(scaled)
    return {"out": scaled.astype(MLX_DTYPES[str(attrs.dtype)])}


@evaluates(Linear)
def linear(inputs: Inputs, attrs: Linear, arena: ArenaLayer | None = None) -> Outputs:
    """The product x @ weight.T + bias, and what adapters add: x [tokens, width], weight [features, width]."""
    y = f32(inputs["x"]) @ f32(inputs["weight"]).T
    if "bias" in inputs:
        y = y + f32(inputs["bias"])
    if "low" in inputs:
        y = y + lifted(inputs["low"], inputs["lift"], inputs["adapter_ids"], y.shape[1])
    return {"out": y.astype(MLX_DTYPES[str(attrs.dtype)])}


@evaluates(Activation)
def activation(inputs: Inputs, attrs: Activation, arena: ArenaLayer | None = None) -> Outputs:
    """The activation function of every element."""
    x = inputs["x"]
    return {"out": activate(f32(x), attrs.kind).astype(x.dtype)}


@evaluates(Multiply)
def multiply(inputs: Inputs, attrs: Multiply, arena: ArenaLayer | None = None) -> Outputs:
    """The elementwise product a * b."""
    return {"out": (f32(inputs["a"]) * f32(inputs["b"])).astype(inputs["a"].dtype)}


@evaluates(ClampedGate)
def clamped_gate(inputs: Inputs, attrs: ClampedGate, arena: ArenaLayer | None = None) -> Outputs:
    """The product of the function of a, at most the limit, and b within +- the limit."""
    gated = activate_gated(f32(inputs["a"]), f32(inputs["b"]), attrs.kind, attrs.limit)
    return {"out": gated.astype(inputs["a"].dtype)}


@evaluates(SwigluOai)
def swiglu_oai(inputs: Inputs, attrs: SwigluOai, arena: ArenaLayer | None = None) -> Outputs:
    """(b + 1) * a * sigmoid(1.702 a), with the gate a at most the limit and b within +- limit."""
    gated = activate_gated(f32(inputs["a"]), f32(inputs["b"]), "swiglu_oai", attrs.limit)
    return {"out": gated.astype(inputs["a"].dtype)}


@evaluates(Add)
def add(inputs: Inputs, attrs: Add, arena: ArenaLayer | None = None) -> Outputs:
    """The elementwise sum a + alpha * b."""
    return {"out": (f32(inputs["a"]) + attrs.alpha * f32(inputs["b"])).astype(inputs["a"].dtype)}


@evaluates(Scale)
def scale(inputs: Inputs, attrs: Scale, arena: ArenaLayer | None = None) -> Outputs:
    """The product factor * x."""
    x = inputs["x"]
    return {"out": (f32(x) * attrs.factor).astype(x.dtype)}


@evaluates(Xielu)
def xielu_op(inputs: Inputs, attrs: Xielu, arena: ArenaLayer | None = None) -> Outputs:
    """The activation of every element, with two learned numbers [1]."""
    x = inputs["x"]
    return {"out": xielu(f32(x), inputs["alpha_p"], inputs["alpha_n"]).astype(x.dtype)}


@evaluates(SoftCap)
def soft_cap(inputs: Inputs, attrs: SoftCap, arena: ArenaLayer | None = None) -> Outputs:
    """The soft cap, cap * tanh(x / cap), of every element."""
    x = inputs["x"]
    return {"out": capped(f32(x), attrs.cap).astype(x.dtype)}


def capped(x: mx.array, cap: float | None) -> mx.array:
    """The soft cap, cap * tanh(x / cap); x itself where there is no cap."""
    return x if cap is None else cap * mx.tanh(x / cap)


@evaluates(Clamp)
def clamp(inputs: Inputs, attrs: Clamp, arena: ArenaLayer | None = None) -> Outputs:
    """Every element within +- the limit."""
    return {"out": clamped(inputs["x"], attrs.limit)}


def clamped(x: mx.array, limit: float | None) -> mx.array:
    """Every element within +-limit; x itself where there is no limit."""
    return x if limit is None else mx.clip(x, -limit, limit)


@evaluates(ScaleBy)
def scale_by(inputs: Inputs, attrs: ScaleBy, arena: ArenaLayer | None = None) -> Outputs:
    """The product of x and the number weight [1]."""
    x = inputs["x"]
    return {"out": (f32(x) * f32(inputs["weight"])).astype(x.dtype)}


@evaluates(MultiplyColumns)
def multiply_columns(inputs: Inputs, attrs: MultiplyColumns, arena: ArenaLayer | None = None) -> Outputs:
    """The product of x [tokens, width] and as many columns of times [tokens, columns]."""
    x = inputs["x"]
    times = f32(inputs["times"])[:, attrs.first : attrs.first + x.shape[1]]
    return {"out": (f32(x) * times).astype(x.dtype)}


@evaluates(GateRows)
def gate_rows(inputs: Inputs, attrs: GateRows, arena: ArenaLayer | None = None) -> Outputs:
    """Rows of x [tokens, width], each times the sigmoid of its gate [tokens, 1]."""
    x = inputs["x"]
    return {"out": (f32(x) * mx.sigmoid(f32(inputs["gate"]))).astype(x.dtype)}


@evaluates(GatherRows)
def gather_rows(inputs: Inputs, attrs: GatherRows, arena: ArenaLayer | None = None) -> Outputs:
    """The rows x[rows] of x [tokens, width]."""
    return {"out": inputs["x"][inputs["rows"]]}


@evaluates(Split)
def split(inputs: Inputs, attrs: Split, arena: ArenaLayer | None = None) -> Outputs:
    """Columns q, k and v of x [tokens, q + k + v or more]."""
    q, k = attrs.q, attrs.k
    x = inputs["x"]
    return {"q": x[:, :q], "k": x[:, q : q + k], "v": x[:, q + k : q + k + attrs.v]}


@evaluates(SplitQk)
def split_qk(inputs: Inputs, attrs: SplitQk, arena: ArenaLayer | None = None) -> Outputs:
    """Columns q and k of x [tokens, q + k]."""
    x = inputs["x"]
    return {"q": x[:, : attrs.q], "k": x[:, attrs.q :]}


@evaluates(Projection)
def projection(inputs: Inputs, attrs: Projection, arena: ArenaLayer | None = None) -> Outputs:
    """The sum residual + residual_scale * sigmoid(gate) * y of a projection y.

    y = act(norm(x[rows]) @ weight.T + bias) * out_scale, soft capped, clamped. Where a block's result is added to x
    first, the sum is `stream`.

    x [tokens, width or more], weight [features, width]; optional norm and norm_bias [width], bias [features],
    residual [rows, out], gate [rows, 1], rows [rows]. Where gated, the weight's rows are the gate's, then the up
    projection's.
    """
    stream = add_block(inputs, attrs.added)
    x = f32(stream[inputs["rows"]] if "rows" in inputs else stream)
    x = normalise_input(x[:, : attrs.columns], inputs, attrs.norm)
    y = x @ f32(inputs["weight"]).T
    if "bias" in inputs:
        y = y + f32(inputs["bias"])
    finish = attrs.finish
    if finish.activation == "xielu":
        y = xielu(y, inputs["alpha_p"], inputs["alpha_n"])
    else:
        y = activate_projected(y, finish.activation, finish.gated, finish.limit)
    out = finish_projection(y, inputs, finish).astype(MLX_DTYPES[str(attrs.dtype)])
    return {"out": out} if attrs.added is None else {"out": out, "stream": stream}


@evaluates(ProjectionSum)
def projection_sum(inputs: Inputs, attrs: ProjectionSum, arena: ArenaLayer | None = None) -> Outputs:
    """The sum residual + residual_scale * (x @ weight.T + bias + second_x @ second_weight.T + second_bias).

    x, second_x [tokens, width], weight, second_weight [features, width]; optional bias, second_bias [features],
    residual [tokens, features].
    """
    y = f32(inputs["x"]) @ f32(inputs["weight"]).T + f32(inputs["second_x"]) @ f32(inputs["second_weight"]).T
    for port in ("bias", "second_bias"):
        if port in inputs:
            y = y + f32(inputs[port])
    return {"out": add_residual(y, inputs, attrs.residual_scale).astype(MLX_DTYPES[str(attrs.dtype)])}


def finish_projection(y: mx.array, inputs: Inputs, finish: Finish) -> mx.array:
    """What follows the activated sums y [rows, out] of a projection, in fp32: up to gate and residual."""
    y = clamped(capped(y * finish.out_scale, finish.out_cap), finish.out_limit)
    if finish.times_first is not None:
        y = y * f32(inputs["times"])[:, finish.times_first : finish.times_first + y.shape[1]]
    if "gate" in inputs:
        y = y * mx.sigmoid(f32(inputs["gate"]))
    return add_residual(y, inputs, finish.residual_scale)

"""The functions of MLX that library calls name: its matrix kernels, with as few passes over memory as possible.

They are as exact as the reference functions of the ops, except that numbers between two MLX ops have the type of the
arrays: 16 bits where activations, weight and result all have 16 bits. Sums are in fp32.
"""

import functools
from collections.abc import Callable, Container, Mapping
from typing import TypeVar

import mlx.core as mx

from mlxr.compiler.artifact import AttentionCall, DType, Finish, InputNorm, MatmulCall
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES
from mlxr.runtime.hosts.mlx_ops.activations import activate, activate_gated, xielu
from mlxr.runtime.hosts.mlx_ops.dense import finish_projection
from mlxr.runtime.hosts.mlx_ops.types import Inputs, f32

Type = TypeVar("Type")
_ELEMENTWISE = ("bias", "gate", "residual")


Activated = Callable[[mx.array, Finish], mx.array | None]
"""Gives the activated sums of a matmul, of which nothing else is to be computed; None: it cannot."""


def call_library(call: MatmulCall | AttentionCall, inputs: Inputs, activated: Activated | None = None) -> mx.array:
    """The result of a library call.

    Args:
        call: the function and its options.
        inputs: arrays by the names of the call's ports, in the types and shapes of these.
        activated: the host's own kernel for activations; None: it has none.
    """
    return matmul(call, inputs, activated) if isinstance(call, MatmulCall) else attention(call, inputs)


def matmul(call: MatmulCall, inputs: Inputs, activated: Activated | None = None) -> mx.array:
    """MLX's matmul.

    Args:
        call: its options.
        inputs: see `call_library`.
        activated: likewise.

    Returns:
        [rows, out], row-major.
    """
    x, finish, out = inputs["x"], call.finish, MLX_DTYPES[call.dtype]
    x = x[inputs["rows"]] if "rows" in inputs else x if call.columns is None else x[:, : call.columns]
    x = _normalised(x, inputs, call.norm)
    columns = inputs["weight"].T
    types = {port: array.dtype for port, array in inputs.items()}
    added = added_by_matmul(types, finish, out)
    if added is not None:
        return mx.addmm(inputs[added], x, columns, alpha=factor_of_sums(finish, added))
    y = x @ columns
    if is_finished(types, finish):
        return y
    own = activated if y.dtype == out and is_activated(types, finish) else None
    if own is not None and (result := own(y, finish)) is not None:
        return result
    finisher = _finisher(finish, call.dtype, mx.default_device().type)
    halves = 2 if finish.gated else 1
    sums: list[mx.array] = list(mx.split(y, halves, axis=-1))
    biases: list[mx.array] = list(mx.split(inputs["bias"], halves)) if "bias" in inputs else []
    return finisher(sums, biases, {port: inputs[port] for port in _OTHERS if port in inputs})


def attention(call: AttentionCall, inputs: Inputs) -> mx.array:
    """MLX's causal attention of one sequence that sees all its context.

    It takes as few MLX ops as possible, because each costs CPU time in every layer.

    Args:
        call: its options.
        inputs: see `call_library`; row-major.

    Returns:
        [tokens, heads * head_dim], row-major.
    """
    queries = inputs["queries"]
    _, tokens, heads, head_dim = queries.shape
    # MLX's kernels take heads at any stride. Its result lies as the queries do, so that turning it back is a view.
    attended = mx.fast.scaled_dot_product_attention(
        queries.transpose(0, 2, 1, 3),
        inputs["keys"],
        inputs["values"],
        scale=call.scale,
        mask="causal",
        sinks=inputs.get("sinks"),
    )
    # The result is row-major, however MLX laid out its own: where the heads of a token are adjacent in memory the
    # reshape is a view, and elsewhere it copies.
    return attended.transpose(0, 2, 1, 3).reshape(tokens, heads * head_dim)


def _normalised(x: mx.array, inputs: Inputs, norm: InputNorm | None) -> mx.array:
    """The norm of x in one pass, in fp32 and rounded to x's type, which its weight and bias have too."""
    if norm is None:
        return x
    weight = inputs.get("norm")
    if norm.kind != "layer":
        assert "norm_bias" not in inputs, "only a layer norm has a bias"
        return mx.fast.rms_norm(x, weight, norm.eps)
    return mx.fast.layer_norm(x, weight, inputs.get("norm_bias"), norm.eps)


def is_finished(ports: Container[str], finish: Finish) -> bool:
    """Whether nothing follows the sums of a matmul with these inputs."""
    is_plain = finish.activation is None and finish.out_cap is None and finish.out_limit is None
    return is_plain and finish.out_scale == 1 and all(port not in ports for port in _ELEMENTWISE)


def is_activated(ports: Container[str], finish: Finish) -> bool:
    """Whether nothing but an activation without numbers of its own follows the sums."""
    is_alone = finish.out_cap is None and finish.out_limit is None and finish.out_scale == 1
    return finish.activation not in (None, "xielu") and is_alone and all(port not in ports for port in _ELEMENTWISE)


def added_by_matmul(types: Mapping[str, Type], finish: Finish, out: Type) -> str | None:
    """The input that the matmul itself adds, in fp32, where nothing else is done to its sums; None if there is more.

    Args:
        types: of the inputs, by port.
        finish: the steps after the sums.
        out: the type of the result.
    """
    ports = [port for port in _ELEMENTWISE if port in types]
    if len(ports) != 1 or ports[0] == "gate" or finish.activation is not None:
        return None
    if finish.out_cap is not None or finish.out_limit is not None:
        return None
    port = ports[0]
    # out_scale is a factor of the bias too.
    same = types[port] == out and (port != "bias" or finish.out_scale == 1)
    return port if same else None


def factor_of_sums(finish: Finish, added: str) -> float:
    """The factor of a matmul's sums to which this input is added."""
    return finish.out_scale * finish.residual_scale if added == "residual" else 1.0


_OTHERS = ("gate", "residual", "alpha_p", "alpha_n")
"""Ports of what follows the sums, other than the bias."""
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
        if kind == "xielu":
            y[0] = xielu(y[0], inputs["alpha_p"], inputs["alpha_n"])
        elif kind is not None:
            y[0] = activate_gated(y[0], y[1], kind, finish.limit) if len(y) > 1 else activate(y[0], kind)
        return finish_projection(y[0], inputs, finish).astype(MLX_DTYPES[str(dtype)])

    return mx.compile(finisher, shapeless=True) if device == mx.gpu else finisher

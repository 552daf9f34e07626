"""Activation functions, in fp32."""

import math

import mlx.core as mx

from mlxr.runtime.hosts.mlx_ops.types import f32


def activate(x: mx.array, kind: str) -> mx.array:
    """The function of every element."""
    match kind:
        case "silu":
            return x * mx.sigmoid(x)
        case "gelu":
            return x * 0.5 * (1 + mx.erf(x / math.sqrt(2)))
        case "gelu_tanh":
            return x * 0.5 * (1 + mx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
        case "relu":
            return mx.maximum(x, 0)
        case "relu2":
            return mx.square(mx.maximum(x, 0))
    raise AssertionError(f"unknown activation {kind!r}; `ActivationKind` names all")


def xielu(x: mx.array, alpha_p: mx.array, alpha_n: mx.array) -> mx.array:
    """A parabola above 0 and an exponential below, with two learned numbers [1]."""
    p, n = mx.logaddexp(f32(alpha_p), 0), 0.5 + mx.logaddexp(f32(alpha_n), 0)
    return mx.where(x > 0, p * x * x, n * (mx.expm1(mx.minimum(x, -1e-6)) - x)) + 0.5 * x


def activate_gated(gate: mx.array, up: mx.array, kind: str, limit: float | None) -> mx.array:
    """The function of the gate, times up, both limited; swiglu_oai limits the gate first, and adds 1 to up."""
    gate = gate if kind == "swiglu_oai" else activate(gate, kind)
    if limit is not None:
        gate, up = mx.minimum(gate, limit), mx.clip(up, -limit, limit)
    return gate * up if kind != "swiglu_oai" else gate * mx.sigmoid(1.702 * gate) * (up + 1)


def activate_projected(y: mx.array, kind: str | None, gated: bool, limit: float | None) -> mx.array:
    """What a projection with an activation makes of y [..., features], whose halves are gate and up where gated."""
    if kind is None:
        return y
    if not gated:
        return activate(y, kind)
    gate, up = mx.split(y, 2, axis=-1)
    return activate_gated(gate, up, kind, limit)

"""The formulas of C kernels, in NumPy and double precision."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x)."""
    return np.exp(-np.logaddexp(0, -x))


def activation(kind: str | None, x: Array, alpha_p: float = 0.0, alpha_n: float = 0.0) -> Array:
    """The activation of one argument, xielu with its two numbers; None: x."""
    if kind == "xielu":
        p, n = math.log1p(math.exp(alpha_p)), 0.5 + math.log1p(math.exp(alpha_n))
        return np.where(x > 0, p * x * x, n * (np.expm1(np.minimum(x, -1e-6)) - x)) + 0.5 * x
    if kind == "gelu":
        return x / 2 * np.array([math.erfc(-v / math.sqrt(2)) for v in x.flat]).reshape(x.shape)
    if kind in ("relu", "relu2"):
        return np.maximum(x, 0) ** (2 if kind == "relu2" else 1)
    if kind is None:
        return x
    return x * sigmoid(x if kind == "silu" else 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def gated(kind: str, gate: Array, up: Array, limit: float | None = None) -> Array:
    """activation(gate) * up, or swiglu_oai."""
    if kind != "swiglu_oai":
        return activation(kind, gate) * up
    if limit is not None:
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return gate * sigmoid(1.702 * gate) * (up + 1)


def normed(kind: str | None, x: Array, weight: Any, bias: Any, eps: float) -> Array:
    """RMSNorm or LayerNorm along the last axis; None: x. bias may be None."""
    if kind is None:
        return x
    if kind == "layer":
        x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * weight
    return x if bias is None else x + bias

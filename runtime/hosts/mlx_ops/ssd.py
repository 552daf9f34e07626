"""The scan of Mamba-2, token by token, also with its convolution. States are read and written through NumPy views."""

from collections.abc import Mapping

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import CONV_STATES, STATES
from mlxr.compiler.ir.ops.mamba2 import PARTS, ConvSsd, Mamba2, Mamba2Heads
from mlxr.compiler.ir.ops.ssd import Ssd, SsdHeads
from mlxr.runtime.arrays.mlx_arrays import as_bits
from mlxr.runtime.hosts.mlx_ops.table import evaluates
from mlxr.runtime.hosts.mlx_ops.types import ArenaLayer, Inputs, Outputs, f32

Floats = npt.NDArray[np.float32]


@evaluates(Ssd)
def ssd(inputs: Inputs, attrs: Ssd, arena: ArenaLayer | None = None) -> Outputs:
    """The heads' results for each token, [tokens, heads * head_dim]."""
    own = {port: _numbers(inputs[port])[:, f : f + n] for port, (f, n) in attrs.columns.items() if port in inputs}
    return _scanned(inputs, attrs, own, arena)


@evaluates(ConvSsd)
def conv_ssd(inputs: Inputs, attrs: ConvSsd, arena: ArenaLayer | None = None) -> Outputs:
    """The same of what the convolution makes of x."""
    own = {port: _numbers(inputs[port])[:, f : f + n] for port, (f, n) in attrs.columns.items() if port in inputs}
    return _convolved(inputs, attrs, own, arena)


@evaluates(Mamba2)
def mamba2(inputs: Inputs, attrs: Mamba2, arena: ArenaLayer | None = None) -> Outputs:
    """The same, of parts that come apart."""
    joined = {"weight": mx.concatenate([inputs[f"{part}_conv"] for part in PARTS])}
    if "x_conv_bias" in inputs:
        joined["bias"] = mx.concatenate([inputs[f"{part}_conv_bias"] for part in PARTS])
    own = {port: _numbers(inputs[port]) for port in attrs.columns if port in inputs}
    own["x"] = np.concatenate([own[part] for part in PARTS], axis=1)
    return _convolved(dict(inputs) | joined, attrs, own, arena)


def _convolved(inputs: Inputs, attrs: Mamba2Heads, own: Mapping[str, Floats], arena: ArenaLayer | None) -> Outputs:
    """The scan of what the convolution makes of the channels `own["x"]`."""
    assert arena is not None, "it keeps states"
    kept = as_bits(inputs[CONV_STATES]).view(np.float32)[:, arena.place(CONV_STATES)]
    filters, before = _numbers(inputs["weight"]).reshape(-1, attrs.taps).T, attrs.taps - 1
    bias = _numbers(inputs["bias"]) if "bias" in inputs else np.float32(0)
    out, start = np.zeros_like(own["x"]), np.array(inputs["query_start"]).tolist()
    for row, begin, end in zip(np.array(inputs["state_table"]).tolist(), start, start[1:], strict=False):
        past = kept[row[0]].copy() if row[0] >= 0 else np.zeros(kept.shape[1:], np.float32)
        every, count = np.concatenate([past.T, own["x"][begin:end]]), end - begin
        y = sum((filters[j] * every[j : j + count] for j in range(attrs.taps)), bias)
        out[begin:end] = y / (1 + np.exp(-y))
        for left, slot in enumerate(row[1:], 1):
            if slot >= 0 and left <= count:
                last = len(every) - left + 1
                kept[slot] = every[last - before : last].T
    parts = np.split(out, [attrs.width, attrs.width + attrs.shared_width], axis=1)
    return _scanned(inputs, attrs, dict(own) | dict(zip(PARTS, parts, strict=True)), arena)


def _scanned(inputs: Inputs, attrs: SsdHeads, own: Mapping[str, Floats], arena: ArenaLayer | None) -> Outputs:
    """The scan of each token's own numbers."""
    assert arena is not None, "it keeps states"
    states = as_bits(inputs[STATES]).view(np.float32)[:, arena.place(STATES)]
    start = np.array(inputs["query_start"]).tolist()
    x, b, c, dt = _by_head(inputs, attrs, own)
    a, d = _numbers(inputs["a"]), _numbers(inputs["d"])
    out = np.zeros_like(x)
    for row, begin, end in zip(np.array(inputs["state_table"]).tolist(), start, start[1:], strict=False):
        state = states[row[0]].copy() if row[0] >= 0 else np.zeros(states.shape[1:], np.float32)
        for i in range(begin, end):
            state *= np.exp(a * dt[i])[:, None, None]
            state += (x[i] * dt[i][:, None])[..., None] * b[i][:, None]
            out[i] = np.einsum("hpn,hn->hp", state, c[i], dtype=np.float64) + d[:, None] * x[i]
            if end - i < len(row) and row[end - i] >= 0:
                states[row[end - i]] = state
    y = mx.array(out.reshape(len(out), -1))
    if "gate" in own:
        y = y * mx.array(own["gate"]) * mx.sigmoid(mx.array(own["gate"]))
    token = inputs.get("token")
    return {"out": y.astype(inputs["x"].dtype)} | ({} if token is None else {"token": token + 1})


def _by_head(inputs: Inputs, attrs: SsdHeads, own: Mapping[str, Floats]) -> tuple[Floats, Floats, Floats, Floats]:
    """X [tokens, heads, head_dim], B and C [tokens, heads, state_dim], dt [tokens, heads]."""
    each = attrs.num_heads // attrs.num_groups
    b, c = (np.repeat(own[port].reshape(-1, attrs.num_groups, attrs.state_dim), each, axis=1) for port in "bc")
    raw = own["dt"] + _numbers(inputs["dt_bias"])
    dt = np.maximum(raw, 0) + np.log1p(np.exp(-np.abs(raw)))
    return own["x"].reshape(-1, attrs.num_heads, attrs.head_dim), b, c, np.clip(dt, attrs.least, attrs.most)


def _numbers(x: mx.array) -> Floats:
    """An array in fp32."""
    return np.array(f32(x))

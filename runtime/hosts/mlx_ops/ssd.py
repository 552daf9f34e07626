"""The scan of Mamba-2, token by token. States are read and written through NumPy views."""

from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.ir.ops.ssd import STATES, Ssd
from mlxr.runtime.arrays.mlx_arrays import as_bits
from mlxr.runtime.hosts.mlx_ops.table import evaluates
from mlxr.runtime.hosts.mlx_ops.types import ArenaLayer, Inputs, Outputs, f32

Floats = npt.NDArray[np.float32]


@evaluates(Ssd)
def ssd(inputs: Inputs, attrs: Ssd, arena: ArenaLayer | None = None) -> Outputs:
    """The heads' results for each token, [tokens, heads * head_dim]."""
    assert arena is not None, "it keeps states"
    states = as_bits(inputs[STATES]).view(np.float32)[:, arena.place(STATES)]
    start = np.array(inputs["query_start"]).tolist()
    x, b, c, dt = _columns(inputs, attrs)
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
    if "gate" in inputs:
        gate = f32(inputs["gate"])[:, attrs.gate_first : attrs.gate_first + attrs.width]
        y = y * gate * mx.sigmoid(gate)
    token = inputs.get("token")
    return {"out": y.astype(inputs["x"].dtype)} | ({} if token is None else {"token": token + 1})


def _columns(inputs: Inputs, attrs: Ssd) -> tuple[Floats, Floats, Floats, Floats]:
    """X [tokens, heads, head_dim], B and C [tokens, heads, state_dim], dt [tokens, heads]."""
    of = {port: _numbers(inputs[port])[:, f : f + n] for port, (f, n) in attrs.columns.items() if port != "gate"}
    each = attrs.num_heads // attrs.num_groups
    shared = [np.repeat(of[port].reshape(-1, attrs.num_groups, attrs.state_dim), each, axis=1) for port in ("b", "c")]
    raw = of["dt"] + _numbers(inputs["dt_bias"])
    dt = np.maximum(raw, 0) + np.log1p(np.exp(-np.abs(raw)))
    return of["x"].reshape(-1, attrs.num_heads, attrs.head_dim), *shared, np.clip(dt, attrs.least, attrs.most)


def _numbers(x: mx.array) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """An array in fp32."""
    return np.array(f32(x))

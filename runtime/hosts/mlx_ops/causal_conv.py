"""Short convolutions along sequences, alone and between gates. States are read and written through NumPy views."""

import mlx.core as mx
import numpy as np

from mlxr.compiler.ir.ops.causal_conv import CausalConv, GatedConv
from mlxr.runtime.arrays.mlx_arrays import as_bits
from mlxr.runtime.hosts.mlx_ops.table import evaluates
from mlxr.runtime.hosts.mlx_ops.types import ArenaLayer, Inputs, Outputs, f32

(_STATES,) = CausalConv.accesses


@evaluates(CausalConv)
def causal_conv(inputs: Inputs, attrs: CausalConv, arena: ArenaLayer | None = None) -> Outputs:
    """The convolution of some columns of x [tokens, width], activated if it is."""
    channels = inputs["weight"].size // attrs.taps
    y = _convolved(f32(inputs["x"])[:, attrs.first : attrs.first + channels], inputs, attrs.taps, arena)
    return _outputs(inputs, y * mx.sigmoid(y) if attrs.activation == "silu" else y)


@evaluates(GatedConv)
def gated_conv(inputs: Inputs, attrs: GatedConv, arena: ArenaLayer | None = None) -> Outputs:
    """The convolution of the product of x's first and last columns, times its middle ones."""
    before, after, x = mx.split(f32(inputs["x"]), 3, axis=1)
    return _outputs(inputs, after * _convolved(before * x, inputs, attrs.taps, arena))


def _convolved(x: mx.array, inputs: Inputs, taps: int, arena: ArenaLayer | None) -> mx.array:
    """The convolution of x [tokens, channels]; reads and writes the last inputs of each sequence."""
    assert arena is not None, "it keeps states"
    rows, filters = np.array(x), np.array(f32(inputs["weight"])).reshape(-1, taps).T
    states = as_bits(inputs[_STATES]).view(np.float32)[:, arena.place(_STATES)]
    start, out = np.array(inputs["query_start"]).tolist(), np.zeros_like(rows)
    for slots, begin, end in zip(np.array(inputs["state_table"]).tolist(), start, start[1:], strict=False):
        before = states[slots[0]].T if slots[0] >= 0 else np.zeros_like(filters[1:])
        every = np.concatenate([before, rows[begin:end]])
        for j in range(taps):
            out[begin:end] += filters[j] * every[j : j + end - begin]
        for left, slot in enumerate(slots[1:], 1):
            if slot >= 0 and left <= end - begin:
                last = len(every) - left + 1
                states[slot] = every[last - taps + 1 : last].T
    return mx.array(out) + (f32(inputs["bias"]) if "bias" in inputs else 0)


def _outputs(inputs: Inputs, y: mx.array) -> Outputs:
    token = inputs.get("token")
    return {"out": y.astype(inputs["x"].dtype)} | ({} if token is None else {"token": token + 1})

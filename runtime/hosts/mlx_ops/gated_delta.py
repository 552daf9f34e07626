"""The gated delta rule, token by token, in fp32.

States are written in place through NumPy views, as keys and values are by `mlxr.runtime.hosts.mlx_ops.attend`.
"""

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import STATES
from mlxr.compiler.ir.ops.gated_delta import DeltaHeads, GatedDelta
from mlxr.runtime.arrays.mlx_arrays import as_bits
from mlxr.runtime.hosts.mlx_ops.attend import pass_token
from mlxr.runtime.hosts.mlx_ops.table import evaluates
from mlxr.runtime.hosts.mlx_ops.types import ArenaLayer, Inputs, Outputs, f32

Array = npt.NDArray[np.float32]


@evaluates(GatedDelta)
def gated_delta(inputs: Inputs, attrs: GatedDelta, arena: ArenaLayer | None = None) -> Outputs:
    """The states' answers to the queries q [tokens, heads * key_dim]; the states after the last tokens are kept."""
    assert arena is not None, "states are kept"
    states = as_bits(inputs[STATES]).view(np.float32)[:, arena.place(STATES)]
    q, k, v, decay, beta = _parts(inputs, attrs)
    out, starts = np.zeros_like(v), np.array(inputs["query_start"]).tolist()
    for slots, begin, end in zip(np.array(inputs["state_table"]).tolist(), starts, starts[1:], strict=False):
        state = states[slots[0]].copy() if slots[0] >= 0 else np.zeros_like(states[0])
        for t in range(begin, end):
            state *= decay[t]
            delta = beta[t] * (v[t] - np.einsum("hij,hi->hj", state, k[t]))
            state += k[t][:, :, None] * delta[:, None]
            out[t] = np.einsum("hij,hi->hj", state, q[t])
            if end - t < len(slots) and slots[end - t] >= 0:
                states[slots[end - t]] = state
    return {"out": mx.array(out.reshape(len(out), -1)).astype(inputs["v"].dtype)} | pass_token(inputs)


def _parts(inputs: Inputs, attrs: DeltaHeads) -> tuple[Array, Array, Array, Array, Array]:
    """Queries and keys [tokens, heads, key_dim], values, decays [tokens, heads, 1 or key_dim, 1], betas [.., 1]."""
    q, k, v, a, b = (f32(inputs[port])[:, first : first + count] for port, (first, count) in attrs.columns.items())
    of_head = [attrs.key_head(head) for head in range(attrs.num_heads)]

    def normed(x: mx.array) -> Array:
        heads = np.array(x).reshape(len(x), attrs.num_key_heads, attrs.key_dim)
        unit: Array = heads / np.sqrt(np.sum(heads * heads, axis=-1, keepdims=True) + np.float32(DeltaHeads.l2_eps))
        return unit[:, of_head]

    rate = f32(inputs["rate"])[:, None]
    decay = mx.exp(rate * mx.logaddexp(a + f32(inputs["dt_bias"]), 0.0).reshape(len(a), attrs.num_heads, -1))
    values = np.array(v).reshape(len(v), attrs.num_heads, attrs.value_dim)
    scaled = normed(q) * np.float32(attrs.key_dim**-0.5)
    return scaled, normed(k), values, np.array(decay)[..., None], np.array(mx.sigmoid(b))[..., None]

"""The norm of a recurrent layer's result, and its gate."""

import mlx.core as mx

from mlxr.compiler.ir.ops.gated_norm import GatedNorm
from mlxr.runtime.hosts.mlx_ops.normalise import normalise
from mlxr.runtime.hosts.mlx_ops.table import evaluates
from mlxr.runtime.hosts.mlx_ops.types import ArenaLayer, Inputs, Outputs, f32


@evaluates(GatedNorm)
def gated_norm(inputs: Inputs, attrs: GatedNorm, arena: ArenaLayer | None = None) -> Outputs:
    """The norm of each group of x [tokens, width], times the gate's function; or the norm of that product."""
    x, gate = f32(inputs["x"]), f32(inputs["gate"])[:, attrs.first : attrs.first + inputs["x"].shape[1]]
    factors = mx.sigmoid(gate) * (gate if attrs.activation == "silu" else 1)
    y = x * factors if attrs.gate_first else x
    if attrs.eps is not None:
        y = normalise(y, inputs.get("weight"), None, "rms", attrs.eps, attrs.groups)
    return {"out": (y if attrs.gate_first else y * factors).astype(inputs["x"].dtype)}

"""Rows times a number."""

from mlxr.compiler.ir.ops.stretch import Stretch
from mlxr.runtime.hosts.mlx_ops.table import evaluates
from mlxr.runtime.hosts.mlx_ops.types import ArenaLayer, Inputs, Outputs, f32


@evaluates(Stretch)
def stretch(inputs: Inputs, attrs: Stretch, arena: ArenaLayer | None = None) -> Outputs:
    """The product of every element and the factor."""
    x = inputs["x"]
    return {"out": (f32(x) * attrs.factor).astype(x.dtype)}

"""Moves norms into the projections that follow them."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.experts import ExpertProjection
from mlxr.compiler.ir.ops.linear import Linear, Projection
from mlxr.compiler.ir.ops.norm import Norm
from mlxr.compiler.passes.base import Edits, PassResult, as_projection

_PARAMETERS = {"weight": "norm", "bias": "norm_bias"}
"""Ports of a norm that it need not have, and those of the projection for them."""


@dataclass(frozen=True)
class FuseNorm:
    """Fuses a norm into its consumers.

    1. projection(norm(x)), for every consumer of the norm -> projection(x, norm, norm_bias); a consumer may also be an
       expert_projection.

    Does not fire when a consumer is neither, reads the norm on another port, or has a norm already, or when the norm's
    result is returned: the norm would still have to be computed. Does not fire when the norm adds a residual or has
    several groups of columns.
    """

    name: str = "fuse_norm"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every norm."""
        edits = Edits(graph)
        for norm, attrs in graph.ops_of(Norm):
            consumers = graph.consumers(norm.out)
            if norm.out in graph.outputs or not consumers or "residual" in norm.inputs or attrs.groups != 1:
                continue
            if all(_takes(op, norm.out) for op in consumers):
                for op in consumers:
                    edits.replace(op, _with_norm(op, norm, attrs))
                edits.replace(norm)
        return edits.result()


def _takes(op: Op, name: str) -> bool:
    return (
        isinstance(op.attrs, Linear | Projection | ExpertProjection)
        and not (isinstance(op.attrs, Projection | ExpertProjection) and op.attrs.norm)
        and [port for port, bound in op.inputs.items() if bound == name] == ["x"]
    )


def _with_norm(op: Op, norm: Op, attrs: Norm) -> Op:
    """The op with the norm before it."""
    fused = op if isinstance(op.attrs, ExpertProjection) else as_projection(op)
    assert isinstance(fused.attrs, Projection | ExpertProjection), "the ops that take a norm"
    inputs = fused.inputs | {"x": norm.inputs["x"]}
    inputs |= {name: norm.inputs[port] for port, name in _PARAMETERS.items() if port in norm.inputs}
    return replace(fused, inputs=inputs, attrs=replace(fused.attrs, eps=attrs.eps, norm_kind=attrs.kind))

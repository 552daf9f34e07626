"""Moves bounds of a projection's result into the projection."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.ir.ops.elementwise import Clamp
from mlxr.compiler.ir.ops.linear import Linear, Projection
from mlxr.compiler.passes.base import Edits, PassResult, sole_producer


@dataclass(frozen=True)
class FuseClamp:
    """Fuses a clamp into the product before it.

    1. clamp(linear(x)) -> projection(x, out_limit).

    Does not fire when the linear op's result is read elsewhere.
    """

    name: str = "fuse_clamp"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every clamp."""
        edits = Edits(graph)
        for op, clamp in graph.ops_of(Clamp):
            if linear := sole_producer(graph, op.inputs["x"], Linear):
                attrs = Projection(linear.attrs_as(Linear).dtype, out_limit=clamp.limit)
                edits.replace(op, replace(op, attrs=attrs, inputs=linear.inputs))
                edits.replace(linear)
        return edits.result()

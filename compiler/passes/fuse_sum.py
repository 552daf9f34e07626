"""Fuses the last products of two blocks that add to the residual stream beside each other."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.linear import Linear, Projection
from mlxr.compiler.ir.ops.projection_sum import ProjectionSum
from mlxr.compiler.passes.base import Edits, PassResult, as_projection, sole_producer

_PORTS = {"x", "weight", "bias", "residual"}


@dataclass(frozen=True)
class FuseSum:
    """Fuses two projections of which one adds its result to that of the other.

    1. projection(b, residual = projection(a, residual)) -> projection_sum(a, b, residual).
    2. projection(b, residual = linear(a)) -> projection_sum(a, b), as on ranks that do not have the residual.

    Does not fire when the first result is read elsewhere, the two scale it differently, one of them does more than a
    product with a bias, or a weight is of several tensors.
    """

    name: str = "fuse_sum"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rules to every projection that adds to another one's result."""
        edits = Edits(graph)
        for second, _ in graph.ops_of(Projection):
            added = second.inputs.get("residual")
            op = None if added is None else sole_producer(graph, added, Linear, Projection)
            first = None if op is None or not edits.untouched(op) else as_projection(op)
            if first is None or first.attrs != second.attrs:
                continue
            if _is_plain(graph, first) and _is_plain(graph, second):
                attrs = second.attrs_as(Projection)
                others = {f"second_{port}": name for port, name in second.inputs.items() if port != "residual"}
                edits.replace(first)
                total = ProjectionSum(attrs.dtype, attrs.residual_scale)
                edits.replace(second, replace(second, attrs=total, inputs=first.inputs | others))
        return edits.result()


def _is_plain(graph: OpGraph, op: Op) -> bool:
    """Whether a projection is a product by one tensor, with a bias and a residual at most."""
    attrs = op.attrs_as(Projection)
    plain = attrs == Projection(attrs.dtype, residual_scale=attrs.residual_scale)
    return plain and op.inputs.keys() <= _PORTS and len(graph.value(op.inputs["weight"]).parts) == 1

"""How many experts the router of a product chooses from."""

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.experts import ExpertProduct, Route


def routed_experts(graph: OpGraph, op: Op) -> int:
    """Experts that the router of an experts' product chooses from.

    On a rank that owns some of the experts they are more than the product's own. Choices of the others are then -1.
    """
    route = graph.producer(op.inputs["experts"])
    if route is None or not isinstance(route.attrs, Route) or route.attrs.owned is None:
        return op.attrs_as(ExpertProduct).num_experts
    count = graph.value(route.inputs["x"]).shape[1]
    assert isinstance(count, int), "the columns of a router's logits are a number"
    return count

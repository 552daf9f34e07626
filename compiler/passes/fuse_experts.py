"""Fuses the last projections of experts and the sum over them into one op."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.ir.ops.experts import ExpertCombine, ExpertLinear, ExpertSum
from mlxr.compiler.passes.base import Edits, PassResult, sole_producer


@dataclass(frozen=True)
class FuseExperts:
    """Fuses the second half of a mixture of experts.

    1. expert_sum(expert_linear(x, experts), weights) -> expert_combine(x, experts, weights), or both without weights.

    Does not fire when a projection is read elsewhere or weighs its inputs, or all experts read the same columns.
    """

    name: str = "fuse_experts"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every sum."""
        edits = Edits(graph)
        for total, _ in graph.ops_of(ExpertSum):
            linear = sole_producer(graph, total.inputs["x"], ExpertLinear)
            if linear is None or "weights" in linear.inputs:
                continue
            experts, columns = linear.attrs_as(ExpertLinear), graph.value(linear.inputs["weight"]).shape[1]
            assert isinstance(columns, int), "weights have no symbolic dims"
            if graph.value(linear.inputs["x"]).shape[1] == experts.top_k * columns:
                combine = ExpertCombine(experts.num_experts, experts.top_k, experts.dtype)
                inputs = linear.inputs | {port: name for port, name in total.inputs.items() if port == "weights"}
                edits.replace(total, replace(total, attrs=combine, inputs=inputs))
                edits.replace(linear)
        return edits.result()

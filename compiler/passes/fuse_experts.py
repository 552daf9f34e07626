"""Makes the last projections of experts and the sum over them one op."""

from dataclasses import dataclass

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.passes.base import Edits, PassResult, sole_producer


@dataclass(frozen=True)
class FuseExperts:
    """Fuses the second half of a mixture of experts.

    1. expert_sum(expert_linear(x, experts), weights) -> expert_combine(x, experts, weights).

    Does not fire when a projection is read elsewhere or all experts read the same columns.
    """

    name: str = "fuse_experts"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every sum."""
        edits = Edits(graph)
        for total in [op for op in graph.ops if op.kind == "expert_sum"]:
            linear = sole_producer(graph, total.inputs["x"], "expert_linear")
            if linear is None:
                continue
            columns, top_k = graph.value(linear.inputs["weight"]).shape[1], linear.attrs["top_k"]
            assert isinstance(columns, int) and isinstance(top_k, int), "weights and experts are numbers"
            if graph.value(linear.inputs["x"]).shape[1] == top_k * columns:
                inputs = linear.inputs | {"weights": total.inputs["weights"]}
                attrs = linear.attrs | {"residual_scale": 1.0}
                edits.replace(total, Op(total.name, "expert_combine", inputs, total.outputs, attrs))
                edits.replace(linear)
        return edits.result()

"""Fuses the choice of experts into the experts' first projections."""

from dataclasses import dataclass, fields, replace

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.experts import ExpertProjection, Route, RoutedProjection
from mlxr.compiler.passes.base import Edits, PassResult


@dataclass(frozen=True)
class FuseRoute:
    """Fuses the choice of experts into the op that uses it first.

    1. expert_projection(x, experts), where experts, weights = route(logits) -> routed_projection(x, logits), which
       also gives experts and weights.
    2. The same of expert_projection(x, experts, weights) -> routed_projection(x, logits, weighs).

    Every reader of the logits makes the same choice, so that no launch has to make it for the others. That pays for the
    few tokens of a decode step.

    Does not fire when the experts are not read by exactly one expert_projection, or when weights of rule 2 are read
    elsewhere, or have factors.
    """

    name: str = "fuse_route"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every choice."""
        edits = Edits(graph)
        for route, attrs in graph.ops_of(Route):
            readers = graph.consumers(route.outputs["experts"])
            projections = [op for op in readers if type(op.attrs) is ExpertProjection]
            if len(projections) != 1:
                continue
            alone = graph.sole_consumer(route.outputs["weights"]) is not None and "scales" not in route.inputs
            if "weights" in projections[0].inputs and not alone:
                continue
            edits.replace(projections[0], _routed(projections[0], route, attrs))
            edits.replace(route)
        return edits.result()


def _routed(projection: Op, route: Op, attrs: Route) -> Op:
    """The projection, which also chooses the experts."""
    own = {field.name: getattr(projection.attrs, field.name) for field in fields(ExpertProjection)}
    chosen = {field.name: getattr(attrs, field.name) for field in fields(Route)}
    inputs = {port: name for port, name in projection.inputs.items() if port not in ("experts", "weights")}
    inputs["logits"] = route.inputs["x"]
    ports = {"bias": "selection_bias", "scales": "expert_scales"}
    inputs |= {name: route.inputs[port] for port, name in ports.items() if port in route.inputs}
    weighs = "weights" in projection.inputs
    outputs = {port: name for port, name in route.outputs.items() if port == "experts" or not weighs}
    return replace(
        projection,
        attrs=RoutedProjection(**(own | chosen), weighs=weighs),
        inputs=inputs,
        outputs=projection.outputs | outputs,
    )

"""Makes gate, up, activation and product one projection."""

from dataclasses import dataclass, replace

from mlxr.compiler.graph import Op, OpGraph
from mlxr.compiler.passes.base import Edits, PassResult, as_projection, sibling, sole_producer


@dataclass(frozen=True)
class FuseGatedMlp:
    """Fuses the first half of a gated MLP.

    1. multiply(activation(linear(x, gate)), linear(x, up)) -> projection(x, [gate; up], activation).

    Does not fire when gate and up read different x, differ in shape, only one has a bias, or an intermediate is read
    elsewhere.
    """

    name: str = "fuse_gated_mlp"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every product."""
        edits = Edits(graph)
        for product in [op for op in graph.ops if op.kind == "multiply"]:
            for gate_port, up_port in (("a", "b"), ("b", "a")):
                activation = sole_producer(graph, product.inputs[gate_port], "activation")
                gate = sole_producer(graph, activation.inputs["x"], "linear") if activation else None
                up = sole_producer(graph, product.inputs[up_port], "linear")
                if activation and gate and up and gate is not up and _alike(graph, gate, up):
                    self._fuse(edits, product, activation, gate, up)
                    break
        return edits.result()

    def _fuse(self, edits: Edits, product: Op, activation: Op, gate: Op, up: Op) -> None:
        weight = gate.inputs["weight"]
        inputs = {"weight": edits.concat(sibling(weight, "gate_up"), [weight, up.inputs["weight"]])}
        if "bias" in gate.inputs:
            bias = gate.inputs["bias"]
            inputs["bias"] = edits.concat(sibling(bias, "gate_up_bias"), [bias, up.inputs["bias"]])
        fused = as_projection(replace(gate, name=product.name, inputs=gate.inputs | inputs, outputs=product.outputs))
        edits.replace(product, replace(fused, attrs=fused.attrs | {"activation": activation.attrs["kind"]}))
        for op in (activation, gate, up):
            edits.replace(op)


def _alike(graph: OpGraph, gate: Op, up: Op) -> bool:
    return (
        gate.inputs["x"] == up.inputs["x"]
        and gate.inputs.keys() == up.inputs.keys()
        and gate.attrs == up.attrs
        and all(graph.value(gate.inputs[port]).shape == graph.value(up.inputs[port]).shape for port in gate.inputs)
    )

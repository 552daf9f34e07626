"""Makes the first projections of an MLP and their activation one projection."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops import AttrValue
from mlxr.compiler.passes.base import Edits, PassResult, as_projection, sibling, sole_producer


@dataclass(frozen=True)
class FuseMlp:
    """Fuses the first half of an MLP, of one network or of experts.

    1. multiply(activation(linear(x, gate)), linear(x, up)) -> projection(x, [gate; up], activation, gated).
    2. swiglu_oai(linear(x, gate), linear(x, up)) -> projection(x, [gate; up], swiglu_oai, gated, limit).
    3. activation(linear(x, up)) -> projection(x, up, activation).
    4. Rules 1 to 3 with expert_linear -> expert_projection.

    Does not fire when gate and up read different x or experts, differ in shape, only one has a bias, or an intermediate
    is read elsewhere. Rule 3 does not fire on a factor of a product, which is rule 1's business.
    """

    name: str = "fuse_mlp"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rules to every product, swiglu_oai and activation."""
        edits = Edits(graph)
        for op in graph.ops:
            if op.kind == "multiply":
                self._product(edits, op)
            elif op.kind == "swiglu_oai":
                gate, up = (_linear(graph, op.inputs[port]) for port in "ab")
                if gate and up and _alike(graph, gate, up):
                    _fuse_pair(edits, op, gate, up, {"activation": op.kind, "limit": op.attrs["limit"]})
        for op in graph.ops:
            factor = op.kind == "activation" and any(user.kind == "multiply" for user in graph.consumers(op.out))
            if op.kind == "activation" and not factor and (up := _linear(graph, op.inputs["x"])):
                edits.replace(op, _activated(up, op, {"activation": op.attrs["kind"]}))
                edits.replace(up)
        return edits.result()

    def _product(self, edits: Edits, product: Op) -> None:
        graph = edits.graph
        for gate_port, up_port in (("a", "b"), ("b", "a")):
            activation = sole_producer(graph, product.inputs[gate_port], "activation")
            gate = _linear(graph, activation.inputs["x"]) if activation else None
            up = _linear(graph, product.inputs[up_port])
            if activation and gate and up and _alike(graph, gate, up):
                _fuse_pair(edits, product, gate, up, {"activation": activation.attrs["kind"]})
                edits.replace(activation)
                return


def _linear(graph: OpGraph, name: str) -> Op | None:
    """The linear op, or that of experts who read the same columns, behind a value which nothing else reads."""
    if op := sole_producer(graph, name, "linear"):
        return op
    op = sole_producer(graph, name, "expert_linear")
    return op if op and graph.value(op.inputs["x"]).shape[1] == graph.value(op.inputs["weight"]).shape[1] else None


def _fuse_pair(edits: Edits, last: Op, gate: Op, up: Op, attrs: dict[str, AttrValue]) -> None:
    """Puts a gated projection in the place of `last`, which combines gate and up."""
    names = {"weight": sibling(gate.inputs["weight"], "gate_up")}
    if "bias" in gate.inputs:
        names["bias"] = sibling(gate.inputs["bias"], "gate_up_bias")
    for port, name in names.items():
        edits.concat(name, [gate.inputs[port], up.inputs[port]])
    merged = replace(gate, inputs=gate.inputs | names)
    edits.replace(last, _activated(merged, last, attrs | {"gated": True}))
    edits.replace(gate)
    edits.replace(up)


def _activated(linear: Op, last: Op, attrs: dict[str, AttrValue]) -> Op:
    """The linear op with an activation, in the place of `last`."""
    if linear.kind == "linear":
        fused = as_projection(linear)
    else:
        plain: dict[str, AttrValue] = {"eps": None, "norm_kind": None, "gated": False, "limit": None}
        fused = replace(linear, kind="expert_projection", attrs=linear.attrs | plain)
    return replace(fused, name=last.name, outputs=last.outputs, attrs=fused.attrs | attrs)


def _alike(graph: OpGraph, gate: Op, up: Op) -> bool:
    same_ports = [port for port in ("x", "experts") if port in gate.inputs]
    return (
        gate is not up
        and gate.kind == up.kind
        and gate.inputs.keys() == up.inputs.keys()
        and gate.attrs == up.attrs
        and all(gate.inputs[port] == up.inputs[port] for port in same_ports)
        and all(graph.value(gate.inputs[port]).shape == graph.value(up.inputs[port]).shape for port in gate.inputs)
    )

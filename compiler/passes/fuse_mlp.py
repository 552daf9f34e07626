"""Fuses the first projections of an MLP and their activation into one projection."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.op_kind import FinishKind, OpKind
from mlxr.compiler.ir.ops.elementwise import Activation, ClampedGate, Multiply, SwigluOai, Xielu
from mlxr.compiler.ir.ops.experts import ExpertLinear, ExpertProjection
from mlxr.compiler.ir.ops.linear import Linear, Projection
from mlxr.compiler.passes.base import Edits, PassResult, sibling, sole_producer
from mlxr.compiler.passes.join_projections import join_adapters


@dataclass(frozen=True)
class FuseMlp:
    """Fuses the first half of an MLP, of one network or of experts.

    1. multiply(activation(linear(x, gate)), linear(x, up)) -> projection(x, [gate; up], activation, gated).
    2. swiglu_oai(linear(x, gate), linear(x, up)) -> projection(x, [gate; up], swiglu_oai, gated, limit).
    3. activation(linear(x, up)) -> projection(x, up, activation).
    4. xielu(linear(x, up), alpha_p, alpha_n) -> projection(x, up, xielu, alpha_p, alpha_n).
    5. clamped_gate(linear(x, gate), linear(x, up)) -> projection(x, [gate; up], activation, gated, limit).
    6. Rules 1 to 3 and 5 with expert_linear -> expert_projection.

    Does not fire when gate and up read different x, experts or weights, differ in shape, only one has a bias, or an
    intermediate is read elsewhere. Rule 3 does not fire on a factor of a product, which rule 1 handles.
    """

    name: str = "fuse_mlp"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rules to every product, swiglu_oai and activation."""
        edits = Edits(graph)
        for product, _ in graph.ops_of(Multiply):
            self._product(edits, product)
        for op, swiglu in graph.ops_of(SwigluOai):
            gate, up = (_linear(graph, op.inputs[port]) for port in "ab")
            if gate and up and _alike(graph, gate, up):
                _fuse_pair(edits, op, gate, up, "swiglu_oai", swiglu.limit)
        for op, clamped in graph.ops_of(ClampedGate):
            gate, up = (_linear(graph, op.inputs[port]) for port in "ab")
            if gate and up and _alike(graph, gate, up):
                _fuse_pair(edits, op, gate, up, clamped.kind, clamped.limit)
        for op, activation in graph.ops_of(Activation):
            is_factor = any(isinstance(user.attrs, Multiply) for user in graph.consumers(op.out))
            if not is_factor and (up := _linear(graph, op.inputs["x"])):
                edits.replace(op, replace(op, attrs=_activated(up.attrs, activation.kind), inputs=up.inputs))
                edits.replace(up)
        for op, _ in graph.ops_of(Xielu):
            if up := sole_producer(graph, op.inputs["x"], Linear):
                alphas = {port: op.inputs[port] for port in ("alpha_p", "alpha_n")}
                edits.replace(op, replace(op, attrs=_activated(up.attrs, "xielu"), inputs=up.inputs | alphas))
                edits.replace(up)
        return edits.result()

    def _product(self, edits: Edits, product: Op) -> None:
        graph = edits.graph
        for gate_port, up_port in (("a", "b"), ("b", "a")):
            activation = sole_producer(graph, product.inputs[gate_port], Activation)
            gate = _linear(graph, activation.inputs["x"]) if activation else None
            up = _linear(graph, product.inputs[up_port])
            if activation and gate and up and _alike(graph, gate, up):
                _fuse_pair(edits, product, gate, up, activation.attrs_as(Activation).kind, None)
                edits.replace(activation)
                return


def _linear(graph: OpGraph, name: str) -> Op | None:
    """The linear op, or the expert_linear over shared columns, that writes a value with no other reader."""
    if op := sole_producer(graph, name, Linear):
        return op
    op = sole_producer(graph, name, ExpertLinear)
    return op if op and graph.value(op.inputs["x"]).shape[1] == graph.value(op.inputs["weight"]).shape[1] else None


def _fuse_pair(edits: Edits, last: Op, gate: Op, up: Op, activation: FinishKind, limit: float | None) -> None:
    """Replaces `last`, which combines gate and up, by a gated projection."""
    names = {"weight": sibling(gate.inputs["weight"], "gate_up")}
    if "bias" in gate.inputs:
        names["bias"] = sibling(gate.inputs["bias"], "gate_up_bias")
    for port, name in names.items():
        edits.concat(name, [gate.inputs[port], up.inputs[port]])
    if "low" in gate.inputs:
        names |= join_adapters(edits, (gate, up), gate, "gate_up")
    attrs = _activated(gate.attrs, activation, gated=True, limit=limit)
    edits.replace(last, replace(last, attrs=attrs, inputs=gate.inputs | names))
    edits.replace(gate)
    edits.replace(up)


def _activated(
    linear: OpKind, activation: FinishKind, *, gated: bool = False, limit: float | None = None
) -> Projection | ExpertProjection:
    """A linear or expert_linear op with an activation."""
    if isinstance(linear, ExpertLinear):
        return ExpertProjection(
            linear.num_experts, linear.top_k, linear.dtype, activation=activation, gated=gated, limit=limit
        )
    assert isinstance(linear, Linear), "gate and up are linear ops"
    return Projection(linear.dtype, activation=activation, gated=gated, limit=limit)


def _alike(graph: OpGraph, gate: Op, up: Op) -> bool:
    same_ports = [port for port in ("x", "experts", "weights") if port in gate.inputs]
    return (
        gate is not up
        and gate.inputs.keys() == up.inputs.keys()
        and gate.attrs == up.attrs
        and all(gate.inputs[port] == up.inputs[port] for port in same_ports)
        and all(graph.value(gate.inputs[port]).shape == graph.value(up.inputs[port]).shape for port in gate.inputs)
    )

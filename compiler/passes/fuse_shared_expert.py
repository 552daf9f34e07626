"""Fuses a shared expert into the ops of the chosen experts."""

from dataclasses import dataclass, replace

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.experts import ExpertCombine, RoutedProjection
from mlxr.compiler.ir.ops.linear import Linear, Projection
from mlxr.compiler.passes.base import Edits, PassResult, as_projection, sole_producer


@dataclass(frozen=True)
class FuseSharedExpert:
    """Fuses a shared expert into the ops of the chosen experts.

    1. projection(projection(x, first), last, residual = expert_combine(y)), where y = routed_projection(x) ->
       expert_combine(y, shared_x, shared = last), where y, shared_x = routed_projection(x, shared = first).
    2. The same where the last projection has a gate, which is linear(x, weight) -> shared_gate = routed_projection(x,
       gate_weight = weight).

    3. projection(projection(x, first), last) beside expert_combine(y), where y = routed_projection(x) -> the same, but
       the shared expert's result is one of its own; the norms of x may have different weights.

    Does not fire when a value in between is read elsewhere, when the first projections differ in the norm of x, the
    activation (of swiglu_oai also its limit) or the type of their results, when the last ones differ in the scale of
    the residual, or when a projection of the shared expert does anything else.
    """

    name: str = "fuse_shared_expert"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rules to every last projection."""
        edits = Edits(graph)
        for last, _ in graph.ops_of(Projection):
            if "residual" in last.inputs and edits.untouched(last):
                self._fuse(edits, last)
        for routed, _ in graph.ops_of(RoutedProjection):
            combine = graph.sole_consumer(routed.out)
            apart = _apart(graph, routed, combine) if combine and edits.untouched(routed, combine) else None
            if combine is not None and apart is not None and edits.untouched(*apart):
                _fuse_apart(edits, routed, combine, *apart)
        return edits.result()

    def _fuse(self, edits: Edits, last: Op) -> None:
        graph = edits.graph
        combine = sole_producer(graph, last.inputs["residual"], ExpertCombine)
        first = sole_producer(graph, last.inputs["x"], Projection)
        routed = sole_producer(graph, combine.inputs["x"], RoutedProjection) if combine else None
        if combine is None or first is None or routed is None or not _is_plain(last, combine):
            return
        if "shared" in routed.inputs or not _begins_alike(first, routed):
            return
        gate = None
        if "gate" in last.inputs:
            gate = sole_producer(graph, last.inputs["gate"], Linear, Projection)
            if gate is None or not _is_gate_of(gate, routed):
                return
        inputs, outputs = {"shared": first.inputs["weight"]}, {"shared_out": first.out}
        sums = combine.inputs | {"shared_x": first.out, "shared": last.inputs["weight"]}
        if gate is not None:
            inputs["gate_weight"] = gate.inputs["weight"]
            outputs["shared_gate"] = sums["shared_gate"] = gate.out
            edits.replace(gate)
        attrs = replace(routed.attrs_as(RoutedProjection), shared_limit=first.attrs_as(Projection).limit)
        edits.replace(
            routed, replace(routed, attrs=attrs, inputs=routed.inputs | inputs, outputs=routed.outputs | outputs)
        )
        edits.replace(first)
        edits.replace(combine)
        edits.replace(last, replace(last, attrs=combine.attrs, inputs=sums))


def _apart(graph: OpGraph, routed: Op, combine: Op) -> tuple[Op, Op] | None:
    """The two products of a shared expert that reads what the chosen ones read, and whose result is not added here."""
    if not isinstance(combine.attrs, ExpertCombine) or {"residual", "shared"} & combine.inputs.keys():
        return None
    for first in graph.consumers(routed.inputs["x"]):
        last = graph.sole_consumer(first.out) if isinstance(first.attrs, Projection) else None
        if last is None or not isinstance(last.attrs, Linear | Projection) or last.inputs.keys() != {"x", "weight"}:
            continue
        plain = as_projection(last).attrs == Projection(combine.attrs.dtype)
        alike = graph.value(last.out).shape == graph.value(combine.out).shape
        if plain and alike and _begins_alike(first, routed, same_norm=False):
            return first, last
    return None


def _fuse_apart(edits: Edits, routed: Op, combine: Op, first: Op, last: Op) -> None:
    inputs, attrs = {"shared": first.inputs["weight"]}, combine.attrs_as(ExpertCombine)
    if first.inputs.get("norm") != routed.inputs.get("norm"):
        inputs["shared_norm"] = first.inputs["norm"]
    outputs = routed.outputs | {"shared_out": first.out}
    chosen = replace(routed.attrs_as(RoutedProjection), shared_limit=first.attrs_as(Projection).limit)
    edits.replace(routed, replace(routed, attrs=chosen, inputs=routed.inputs | inputs, outputs=outputs))
    sums = combine.inputs | {"shared_x": first.out, "shared": last.inputs["weight"]}
    results = combine.outputs | {"shared_out": last.out}
    edits.replace(combine, replace(combine, attrs=replace(attrs, shared_apart=True), inputs=sums, outputs=results))
    edits.replace(first)
    edits.replace(last)


def _is_plain(last: Op, combine: Op) -> bool:
    """Whether the last projection is nothing but a product that is added to the sum, scaled as that is."""
    attrs, sums = last.attrs_as(Projection), combine.attrs_as(ExpertCombine)
    return (
        last.inputs.keys() <= {"x", "weight", "residual", "gate"}
        and attrs == Projection(sums.dtype, residual_scale=attrs.residual_scale)
        and attrs.residual_scale == sums.residual_scale
    )


def _begins_alike(first: Op, routed: Op, *, same_norm: bool = True) -> bool:
    """Whether the shared expert's first projection is that of the chosen ones, with another weight and without bias.

    Unless `same_norm`, the weights of their norms may be different.
    """
    attrs, of = first.attrs_as(Projection), routed.attrs_as(RoutedProjection)
    limit = of.limit if of.activation == "swiglu_oai" else attrs.limit
    same = Projection(of.dtype, of.eps, of.norm_kind, of.activation, of.gated, limit)
    alike = _reads(first) == _reads(routed)
    if not same_norm and not alike:
        alike = _reads(first).keys() == _reads(routed).keys() == {"x", "norm"}
    return attrs == same and alike and first.inputs.keys() <= {"x", "weight", *_NORM}


def _is_gate_of(gate: Op, routed: Op) -> bool:
    """Whether a product is the gate of an expert that reads the same x, with the same norm."""
    of, attrs = routed.attrs_as(RoutedProjection), as_projection(gate).attrs
    plain = gate.inputs.keys() <= {"x", "weight", *_NORM}
    return plain and attrs == Projection(DType.F32, of.eps, of.norm_kind) and _reads(gate) == _reads(routed)


_NORM = ("norm", "norm_bias")


def _reads(op: Op) -> dict[str, str]:
    """What the op multiplies with its weights: x, and its norm."""
    return {port: name for port, name in op.inputs.items() if port in ("x", *_NORM)}

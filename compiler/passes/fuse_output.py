"""Moves elementwise ops on a projection's result into the projection."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.elementwise import MultiplyColumns, Scale, SoftCap
from mlxr.compiler.ir.ops.linear import Linear, Projection
from mlxr.compiler.ir.ops.rows import GateRows
from mlxr.compiler.passes.base import Edits, PassResult, as_projection


@dataclass(frozen=True)
class FuseOutput:
    """Fuses elementwise ops that follow a projection.

    1. scale(projection(x)) -> projection(x, out_scale), if the projection has no soft cap.
    2. soft_cap(projection(x)) -> projection(x, out_cap), if it has no soft cap.
    3. gate_rows(projection(x), gate) -> projection(x, gate), in the place of gate_rows, if it has no gate.

    4. multiply_columns(projection(x), times) -> projection(x, times, times_first).

    Rules 1 and 2 do not fire on a projection with a gate, and no rule on one that is multiplied by columns. No rule
    fires when the projection adds a residual or its result is read elsewhere.
    """

    name: str = "fuse_output"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rules to every scale, soft cap, gate and product with columns, in program order."""
        edits = Edits(graph)
        fused: dict[str, Op] = {}
        for op in graph.ops:
            if not isinstance(op.attrs, Scale | SoftCap | GateRows | MultiplyColumns):
                continue
            producer = graph.producer(op.inputs["x"])
            if producer is None or not graph.sole_consumer(op.inputs["x"]):
                continue
            before = fused.get(producer.name, producer)
            if isinstance(before.attrs, Linear | Projection) and (after := _absorbed(as_projection(before), op)):
                edits.replace(producer)
                fused[op.name] = replace(op, attrs=after.attrs, inputs=after.inputs)
                edits.replace(op, fused[op.name])
        return edits.result()


def _absorbed(projection: Op, op: Op) -> Op | None:
    """The projection with `op` fused into it, or None if it cannot be."""
    attrs = projection.attrs_as(Projection)
    if {"residual", "gate", "times"} & projection.inputs.keys():
        return None
    if isinstance(op.attrs, GateRows):
        return replace(projection, inputs=projection.inputs | {"gate": op.inputs["gate"]})
    if isinstance(op.attrs, MultiplyColumns):
        times = {"times": op.inputs["times"]}
        return replace(projection, attrs=replace(attrs, times_first=op.attrs.first), inputs=projection.inputs | times)
    if attrs.out_cap is not None:
        return None
    if isinstance(op.attrs, SoftCap):
        return replace(projection, attrs=replace(attrs, out_cap=op.attrs.cap))
    return replace(projection, attrs=replace(attrs, out_scale=attrs.out_scale * op.attrs_as(Scale).factor))

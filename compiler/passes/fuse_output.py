"""Moves what is done to a projection's result into the projection."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.passes.base import Edits, PassResult, as_projection


@dataclass(frozen=True)
class FuseOutput:
    """Fuses what follows a projection element by element.

    1. scale(projection(x)) -> projection(x, out_scale), where the projection has no soft cap.
    2. soft_cap(projection(x)) -> projection(x, out_cap), where it has none.
    3. gate_rows(projection(x), gate) -> projection(x, gate), at the place of gate_rows, where it has none.

    Rules 1 and 2 do not fire on a projection with a gate; none does when it adds a residual or its result is read
    elsewhere.
    """

    name: str = "fuse_output"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rules to every scale, soft cap and gate, in program order."""
        edits = Edits(graph)
        fused: dict[str, Op] = {}
        for op in graph.ops:
            if op.kind not in ("scale", "soft_cap", "gate_rows"):
                continue
            made = graph.producer(op.inputs["x"])
            if made is None or not graph.sole_consumer(op.inputs["x"]):
                continue
            before = fused.get(made.name, made)
            if before.kind in ("linear", "projection") and (after := _absorbed(as_projection(before), op)):
                edits.replace(made)
                fused[op.name] = replace(after, name=op.name, outputs=op.outputs)
                edits.replace(op, fused[op.name])
        return edits.result()


def _absorbed(projection: Op, op: Op) -> Op | None:
    """The projection that does what `op` does to its result, or None."""
    attrs = projection.attrs
    if {"residual", "gate"} & projection.inputs.keys():
        return None
    if op.kind == "gate_rows":
        return replace(projection, inputs=projection.inputs | {"gate": op.inputs["gate"]})
    if attrs["out_cap"] is not None:
        return None
    if op.kind == "soft_cap":
        return replace(projection, attrs=attrs | {"out_cap": op.attrs["cap"]})
    factor, scaled = op.attrs["factor"], attrs["out_scale"]
    assert isinstance(factor, int | float) and isinstance(scaled, int | float), "the op table says so"
    return replace(projection, attrs=attrs | {"out_scale": scaled * factor})

"""Adds the residual in the projection that makes the other addend."""

from dataclasses import dataclass, replace

from mlxr.compiler.graph import OpGraph
from mlxr.compiler.passes.base import Edits, PassResult, as_projection


@dataclass(frozen=True)
class FuseResidual:
    """Fuses a residual add into the projection before it.

    1. add(residual, projection(x)) or add(projection(x), residual) -> projection(x, residual), at the add's place.

    Does not fire when the projection's result is read elsewhere or added to itself, or when the projection has a
    residual already or is gated.
    """

    name: str = "fuse_residual"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every add."""
        edits = Edits(graph)
        for add in [op for op in graph.ops if op.kind == "add"]:
            for port, other in (("b", "a"), ("a", "b")):
                op = graph.producer(add.inputs[port])
                if op is None or op.kind not in ("linear", "projection") or not edits.untouched(op):
                    continue
                fused = as_projection(op)
                twice = add.inputs[other] == op.out
                if twice or "residual" in op.inputs or fused.attrs["activation"] or not graph.sole_consumer(op.out):
                    continue
                inputs = fused.inputs | {"residual": add.inputs[other]}
                edits.replace(op)
                edits.replace(add, replace(fused, name=add.name, inputs=inputs, outputs=add.outputs))
                break
        return edits.result()

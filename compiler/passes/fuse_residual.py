"""Adds the residual in the op that makes the other addend."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.passes.base import Edits, PassResult, as_projection


@dataclass(frozen=True)
class FuseResidual:
    """Fuses a residual add into the op before it.

    1. add(residual, alpha * projection(x)) -> projection(x, residual, residual_scale = alpha), at the add's place;
       with alpha 1 also add(projection(x), residual).
    2. The same for expert_combine(x) and norm(x) in the place of the projection.

    Does not fire when the op's result is read elsewhere or added to itself, or when the op has a residual already or a
    projection an activation.
    """

    name: str = "fuse_residual"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rules to every add."""
        edits = Edits(graph)
        for add in [op for op in graph.ops if op.kind == "add"]:
            ports = (("b", "a"), ("a", "b")) if add.attrs["alpha"] == 1 else (("b", "a"),)
            for port, other in ports:
                op = graph.producer(add.inputs[port])
                twice = op is not None and add.inputs[other] == add.inputs[port]
                if op is None or twice or not edits.untouched(op) or not graph.sole_consumer(add.inputs[port]):
                    continue
                if fused := _adding(op):
                    inputs = fused.inputs | {"residual": add.inputs[other]}
                    attrs = fused.attrs | {"residual_scale": add.attrs["alpha"]}
                    edits.replace(op)
                    edits.replace(add, replace(fused, name=add.name, inputs=inputs, outputs=add.outputs, attrs=attrs))
                    break
        return edits.result()


def _adding(op: Op) -> Op | None:
    """The op in the form that can add a residual, if it has none yet."""
    if op.kind in ("linear", "projection"):
        op = as_projection(op)
        free = "residual" not in op.inputs and op.attrs["activation"] is None
    else:
        free = op.kind in ("expert_combine", "norm") and "residual" not in op.inputs
    return op if free else None

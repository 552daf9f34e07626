"""Fuses a residual add into the op that computes the other addend."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.elementwise import Add, ScaleBy
from mlxr.compiler.ir.ops.experts import ExpertCombine
from mlxr.compiler.ir.ops.handover import TakeSum
from mlxr.compiler.ir.ops.linear import Linear, Projection
from mlxr.compiler.ir.ops.norm import Norm
from mlxr.compiler.passes.base import Edits, PassResult, as_projection, sole_producer


@dataclass(frozen=True)
class FuseResidual:
    """Fuses a residual add into the op before it.

    1. add(residual, alpha * projection(x)) -> projection(x, residual, residual_scale = alpha), in the add's place;
       if alpha is 1, also add(projection(x), residual).
    2. The same for expert_combine(x), take_sum and norm(x) instead of the projection.
    3. scale_by(norm(x)), after that -> norm(x, scale).

    Does not fire when the op's result is read elsewhere or added to itself, or when the op already has a residual, or
    when a projection has an activation.
    """

    name: str = "fuse_residual"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rules to every add."""
        edits = Edits(graph)
        added: dict[str, Op] = {}
        for add, attrs in graph.ops_of(Add):
            ports = (("b", "a"), ("a", "b")) if attrs.alpha == 1 else (("b", "a"),)
            for port, other in ports:
                op = graph.producer(add.inputs[port])
                twice = op is not None and add.inputs[other] == add.inputs[port]
                if op is None or twice or not edits.untouched(op) or not graph.sole_consumer(add.inputs[port]):
                    continue
                if fused := _adding(op, attrs.alpha):
                    inputs = fused.inputs | {"residual": add.inputs[other]}
                    edits.replace(op)
                    added[add.out] = replace(add, attrs=fused.attrs, inputs=inputs)
                    edits.replace(add, added[add.out])
                    break
        for op, _ in graph.ops_of(ScaleBy):
            norm = added.get(op.inputs["x"]) or sole_producer(graph, op.inputs["x"], Norm)
            if norm is not None and isinstance(norm.attrs, Norm) and graph.sole_consumer(norm.out):
                edits.replace(norm)
                scaled = replace(op, attrs=norm.attrs, inputs=norm.inputs | {"scale": op.inputs["weight"]})
                edits.replace(op, scaled)
        return edits.result()


def _adding(op: Op, scale: float) -> Op | None:
    """The op, changed to add `scale` times its result to a residual; None if it cannot."""
    if "residual" in op.inputs:
        return None
    if isinstance(op.attrs, Linear | Projection):
        op = as_projection(op)
    attrs = op.attrs
    if isinstance(attrs, Projection) and attrs.activation is None:
        return replace(op, attrs=replace(attrs, residual_scale=scale))
    if isinstance(attrs, ExpertCombine | TakeSum | Norm):
        return replace(op, attrs=replace(attrs, residual_scale=scale))
    return None

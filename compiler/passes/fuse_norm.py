"""Moves norms into the projections that follow them."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.passes.base import Edits, PassResult, as_projection


@dataclass(frozen=True)
class FuseNorm:
    """Fuses a norm into its consumers.

    1. projection(norm(x)), for every consumer of the norm -> projection(x, norm, norm_bias); a consumer may also be an
       expert_projection.

    Does not fire when a consumer is neither, reads the norm on another port, has a norm already, or when the norm's
    result is returned: the norm would have to be computed all the same. Nor when the norm adds a residual or is of
    groups of columns.
    """

    name: str = "fuse_norm"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every norm."""
        edits = Edits(graph)
        for norm in [op for op in graph.ops if op.kind == "norm"]:
            consumers = graph.consumers(norm.out)
            if norm.out in graph.outputs or not consumers or "residual" in norm.inputs or norm.attrs["groups"] != 1:
                continue
            if all(_takes(op, norm.out) for op in consumers):
                for op in consumers:
                    edits.replace(op, _with_norm(op, norm))
                edits.replace(norm)
        return edits.result()


def _takes(op: Op, name: str) -> bool:
    return (
        op.kind in ("linear", "projection", "expert_projection")
        and "norm" not in op.inputs
        and [port for port, bound in op.inputs.items() if bound == name] == ["x"]
    )


def _with_norm(op: Op, norm: Op) -> Op:
    fused = op if op.kind == "expert_projection" else as_projection(op)
    inputs = fused.inputs | {"x": norm.inputs["x"], "norm": norm.inputs["weight"]}
    if "bias" in norm.inputs:
        inputs["norm_bias"] = norm.inputs["bias"]
    return replace(
        fused, inputs=inputs, attrs=fused.attrs | {"eps": norm.attrs["eps"], "norm_kind": norm.attrs["kind"]}
    )

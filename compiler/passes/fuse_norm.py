"""Moves RMSNorm into the projections that follow it."""

from dataclasses import dataclass, replace

from mlxr.compiler.graph import OpGraph
from mlxr.compiler.passes.base import Edits, PassResult, as_projection


@dataclass(frozen=True)
class FuseNorm:
    """Fuses a norm into its consumers.

    1. projection(rms_norm(x)), for every consumer of the norm -> projection(x, norm).

    Does not fire when a consumer is no projection, reads the norm on another port, has a norm already, or when the
    norm's result is returned: the norm would have to be computed all the same.
    """

    name: str = "fuse_norm"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every norm."""
        edits = Edits(graph)
        for norm in [op for op in graph.ops if op.kind == "rms_norm"]:
            consumers = graph.consumers(norm.out)
            if norm.out in graph.outputs or not consumers:
                continue
            if all(
                op.kind in ("linear", "projection")
                and "norm" not in op.inputs
                and [port for port, name in op.inputs.items() if name == norm.out] == ["x"]
                for op in consumers
            ):
                for op in consumers:
                    fused = as_projection(op)
                    inputs = fused.inputs | {"x": norm.inputs["x"], "norm": norm.inputs["weight"]}
                    edits.replace(op, replace(fused, inputs=inputs, attrs=fused.attrs | {"eps": norm.attrs["eps"]}))
                edits.replace(norm)
        return edits.result()

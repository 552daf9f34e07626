"""Fuses a row gather into the projection that reads the rows."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.ir.ops.linear import Linear, Projection
from mlxr.compiler.ir.ops.rows import GatherRows
from mlxr.compiler.passes.base import Edits, PassResult, as_projection


@dataclass(frozen=True)
class FuseGather:
    """Fuses a row gather into the projection after it.

    1. projection(gather_rows(x, rows)) -> projection(x, rows).

    Does not fire when the gathered rows have another consumer, or when the projection has a residual or a gate, whose
    rows match its result.
    """

    name: str = "fuse_gather"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every gather."""
        edits = Edits(graph)
        for gather, _ in graph.ops_of(GatherRows):
            op = graph.sole_consumer(gather.out)
            if op is None or not isinstance(op.attrs, Linear | Projection):
                continue
            if {"rows", "residual", "gate"} & op.inputs.keys():
                continue
            if op.inputs["x"] == gather.out:
                edits.replace(op, replace(as_projection(op), inputs=op.inputs | gather.inputs))
                edits.replace(gather)
        return edits.result()

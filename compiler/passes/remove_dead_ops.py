"""Removes ops that contribute to no result."""

from dataclasses import dataclass

from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.passes.base import Edits, PassResult


@dataclass(frozen=True)
class RemoveDeadOps:
    """Removes dead ops.

    1. An op from which neither a returned value nor an arena write can be reached -> removed.
    """

    name: str = "remove_dead_ops"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every op."""
        edits, read = Edits(graph), set(graph.outputs)
        for op in reversed(list(graph.ops)):  # what reads a value comes after what makes it
            if op.attrs.access in ("write", "readwrite") or not read.isdisjoint(op.outputs.values()):
                read.update(op.inputs.values())
            else:
                edits.replace(op)
        return edits.result()

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
        roots = {"%" + name for name in graph.outputs}
        roots |= {op.name for op in graph.ops if op.attrs.access in ("write", "readwrite")}
        reached = set(roots)
        frontier = list(roots)
        while frontier:
            unseen = [node for node in graph.nx.predecessors(frontier.pop()) if node not in reached]
            reached.update(unseen)
            frontier.extend(unseen)
        edits = Edits(graph)
        for op in graph.ops:
            if op.name not in reached:
                edits.replace(op)
        return edits.result()

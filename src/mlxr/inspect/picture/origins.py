"""Which ops of the source graph a fused op replaced, found from the names that fusion keeps.

An artifact holds graphs, not the history of passes. But a fused op keeps the name of an op, makes values of the source
graph, and reads weights whose parts the source ops read. It also replaced the ops whose values flow only into these.
"""

from mlxr.compiler.artifact import Op, OpGraph
from mlxr.inspect.picture.folded import Folded, arena_access


def origins(source: Folded, fused: Folded) -> dict[str, tuple[Op, ...]]:
    """For every op of the fused graph, the ops of the source graph that it computes, in program order."""
    ops = source.ops
    claims: dict[str, str] = {}
    shown = {op.name: op for op in ops}
    for op in fused.ops:
        if op.name in shown:
            claims[op.name] = op.name
    for op in fused.ops:
        for name in op.outputs.values():
            producer = source.graph.producer(name) if name in source.graph else None
            if producer and producer.name in shown:
                claims.setdefault(producer.name, op.name)
    for op in fused.ops:
        for name in _weight_parts(fused.graph, op):
            for consumer in source.graph.consumers(name) if name in source.graph else ():
                if consumer.name in shown:
                    claims.setdefault(consumer.name, op.name)
    for op in ops:
        if op.name not in claims and arena_access(op) != "none":
            owners = [f.name for f in fused.ops if _same_access(f, op)]
            if len(owners) == 1:
                claims[op.name] = owners[0]
    for op in reversed(ops):
        users = {claims.get(link.target) for link in source.links if link.source == op.name and link.target}
        owner = users.pop() if len(users) == 1 else None
        if owner is not None:
            claims.setdefault(op.name, owner)
    return {f.name: tuple(op for op in ops if claims.get(op.name) == f.name) for f in fused.ops}


def _weight_parts(graph: OpGraph, op: Op) -> list[str]:
    weights = [graph.value(name) for name in op.inputs.values()]
    return [part for value in weights if value.role == "weight" for part in value.parts]


def _same_access(fused: Op, op: Op) -> bool:
    """Whether a fused op covers an arena access of the same layer."""
    return fused.layer == op.layer and arena_access(op) in arena_access(fused)

"""Which ops have no call of their own, because that of a projection with adapters does what they do."""

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.adapter import AdapterDown, AdapterUp
from mlxr.compiler.ir.ops.norm import Norm


def is_adapted(graph: OpGraph, op: Op) -> bool:
    """Whether adapters add to a projection's sums."""
    reader = graph.sole_consumer(op.out)
    return reader is not None and isinstance(reader.attrs, AdapterUp)


def adapted_norm(graph: OpGraph, name: str) -> Op | None:
    """The norm that gives a value, if only projections with adapters read it, each of which then computes it anew."""
    norm = graph.producer(name)
    if norm is None or not isinstance(norm.attrs, Norm) or name in graph.outputs:
        return None
    if norm.attrs.groups != 1 or {"residual", "scale"} & norm.inputs.keys():
        return None
    reads = all(isinstance(op.attrs, AdapterDown) or is_adapted(graph, op) for op in graph.consumers(name))
    return norm if reads else None

"""An op as one of its launches sees it: several may share its weights."""

from collections.abc import Collection
from dataclasses import replace

from mlxr.compiler.artifact import Op, OpGraph
from mlxr.compiler.ir.ops.experts import SHARED_WEIGHTS, ExpertProduct
from mlxr.compiler.ir.ops.projection_sum import WEIGHTS as SUM_WEIGHTS
from mlxr.compiler.ir.ops.projection_sum import ProjectionSum
from mlxr.compiler.ir.work import Use


def use_of_launch(graph: OpGraph, op: Op, names: Collection[str]) -> Use:
    """The place of an op, with those weights alone that a launch binds.

    Only ops of experts and sums of products divide their weights among launches: of several tokens, the shared expert
    has its own, and so has each product.

    Args:
        graph: the graph.
        op: the op.
        names: what the launch binds: weights, or parts of them.
    """
    use = graph.use(op)
    if not isinstance(op.attrs, ExpertProduct | ProjectionSum):
        return use
    ports = [port for port in dict.fromkeys(("weight", *SHARED_WEIGHTS, *SUM_WEIGHTS)) if port in op.inputs]
    unread = {p for p in ports if not {op.inputs[p], *graph.value(op.inputs[p]).parts}.intersection(names)}
    return replace(use, inputs={port: tensor for port, tensor in use.inputs.items() if port not in unread})

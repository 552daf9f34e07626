"""Takes what adapters add out of projections."""

from dataclasses import dataclass, fields, replace
from typing import Any

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.adapter import FINISH_STEPS, AdapterDown, AdapterUp
from mlxr.compiler.ir.ops.linear import Linear, Projection
from mlxr.compiler.ir.ops.product import ADAPTER_PORTS
from mlxr.compiler.passes.base import Edits, PassResult, as_projection

_AFTER = ("residual", "gate", "alpha_p", "alpha_n")
"""The ports of the steps after the sums."""


@dataclass(frozen=True)
class SplitAdapters:
    """Makes two ops of a projection with an adapter: the product, and what comes after it.

    1. projection(x, weight, bias, low, lift, ...) -> adapter_up(projection(x, weight, bias), low, lift, ...), which
       has the activation, the residual and all other steps after the sums.

    So no kernel of products need know adapters, and a matrix may have any format.
    """

    name: str = "split_adapters"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every projection."""
        edits = Edits(graph)
        for op in graph.ops:
            if isinstance(op.attrs, Linear | Projection) and "low" in op.inputs:
                edits.replace(op, *_split(edits, as_projection(op)))
        return edits.result()


def _split(edits: Edits, op: Op) -> tuple[Op, Op]:
    graph, attrs = edits.graph, op.attrs_as(Projection)
    assert attrs.added is None and attrs.times_first is None and "rows" not in op.inputs, f"{op.name} has an adapter"
    down = graph.producer(op.inputs["low"])
    assert down is not None, "an op makes it"
    of = down.attrs_as(AdapterDown)
    weight, out = graph.value(op.inputs["weight"]), graph.value(op.out)
    sums = edits.declare(replace(out, name=f"{op.name}.sums", shape=(out.shape[0], *weight.shape[:1])))
    plain: dict[str, Any] = {field.name: field.default for field in fields(Projection) if field.name in FINISH_STEPS}
    own = {port: name for port, name in op.inputs.items() if port not in (*ADAPTER_PORTS, *_AFTER)}
    product = replace(op, name=sums, attrs=replace(attrs, **plain), inputs=own, outputs={"out": sums})
    after = {port: name for port, name in op.inputs.items() if port in (*ADAPTER_PORTS, *_AFTER)}
    steps = {name: getattr(attrs, name) for name in FINISH_STEPS}
    up = AdapterUp(attrs.dtype, of.rank, of.slots, of.widths, **steps)
    return product, replace(op, attrs=up, inputs={"x": sums} | after)

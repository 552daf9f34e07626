"""Computes the last norm and the logits only for the rows that the batch asks for."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.elementwise import Scale, SoftCap
from mlxr.compiler.ir.ops.linear import Linear
from mlxr.compiler.ir.ops.norm import Norm
from mlxr.compiler.ir.ops.rows import GatherRows
from mlxr.compiler.passes.base import Edits, PassResult

_ROWWISE = (Norm, Linear, Scale, SoftCap)


@dataclass(frozen=True)
class LastTokenLogits:
    """Sinks row gathers towards the start of the program.

    1. gather_rows(f(x)) -> f(gather_rows(x)) for f in norm, linear, scale, soft_cap, repeated while it applies.

    Does not fire when f(x) has another consumer or is returned, or f adds a residual, which has as many rows as x.
    """

    name: str = "last_token_logits"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every gather."""
        edits = Edits(graph)
        for gather, _ in graph.ops_of(GatherRows):
            chain: list[Op] = []
            source = graph.producer(gather.inputs["x"])
            while source and isinstance(source.attrs, _ROWWISE) and _sinks(graph, source):
                chain.append(source)
                source = graph.producer(source.inputs["x"])
            if chain:
                self._sink(edits, gather, chain[::-1])
        return edits.result()

    def _sink(self, edits: Edits, gather: Op, chain: list[Op]) -> None:
        graph = edits.graph
        rows = graph.value(gather.out).shape[0]
        hidden = graph.value(chain[0].inputs["x"])
        x = edits.declare(
            replace(hidden, name=f"{gather.name}.gather", role="activation", shape=(rows, *hidden.shape[1:]))
        )
        inputs = gather.inputs | {"x": hidden.name}
        new = [replace(gather, name=f"{gather.name}.gather", inputs=inputs, outputs={"out": x})]
        for op in chain:
            if op is chain[-1]:
                out = gather.out
            else:
                value = graph.value(op.out)
                out = edits.declare(replace(value, name=f"{value.name}.rows", shape=(rows, *value.shape[1:])))
            new.append(replace(op, inputs=op.inputs | {"x": x}, outputs={"out": out}))
            x = out
            edits.replace(op)
        edits.replace(gather, *new)


def _sinks(graph: OpGraph, op: Op) -> bool:
    return graph.sole_consumer(op.out) is not None and "residual" not in op.inputs

"""Joins a short convolution with its gates and with the projections that they are made of."""

from dataclasses import dataclass, replace

from mlxr.compiler.artifact.program import PhaseName
from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.causal_conv import CausalConv, GatedConv
from mlxr.compiler.ir.ops.elementwise import Multiply
from mlxr.compiler.ir.ops.linear import Linear
from mlxr.compiler.passes.base import Edits, PassResult, sole_producer
from mlxr.compiler.passes.join_projections import are_alike, join_projections


@dataclass(frozen=True)
class FuseConv:
    """Fuses gated convolutions, and gives convolutions of prompts the tiles of tokens.

    1. multiply(linear(y, c), causal_conv(multiply(linear(y, b), linear(y, x)))) -> gated_conv(linear(y, [b; c; x])).
    2. In prefill, every convolution -> the same with query_tiles.

    Rule 1 does not fire when the projections read different y, when only some have a bias, when something else reads a
    value between them, or when the convolution is activated or reads some of the columns.
    """

    phase: PhaseName

    @property
    def name(self) -> str:
        """The pass's name, with its option."""
        return f"fuse_conv[{self.phase}]"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rules to every convolution."""
        edits = Edits(graph)
        for conv, attrs in graph.ops_of(CausalConv):
            tiled = self._tiled(edits, conv)
            parts = _gates_of(graph, conv, attrs)
            if parts is not None:
                _join(edits, tiled, attrs, *parts)
            elif tiled is not conv:
                edits.replace(conv, tiled)
        return edits.result()

    def _tiled(self, edits: Edits, conv: Op) -> Op:
        if self.phase == "decode" or "query_tiles" in conv.inputs:
            return conv
        return replace(conv, inputs=conv.inputs | {"query_tiles": edits.query_tiles()})


def _gates_of(graph: OpGraph, conv: Op, attrs: CausalConv) -> tuple[list[Op], Op, Op] | None:
    """The projections of b, c and x, the product before the convolution, and the one after it."""
    before, after = sole_producer(graph, conv.inputs["x"], Multiply), graph.sole_consumer(conv.out)
    if before is None or after is None or not isinstance(after.attrs, Multiply):
        return None
    if attrs.activation is not None or attrs.first or after.inputs["b"] != conv.out:
        return None
    names = (before.inputs["a"], after.inputs["a"], before.inputs["b"])
    linears = [op for name in names if (op := sole_producer(graph, name, Linear)) is not None]
    if len({op.name for op in linears}) < len(names):
        return None
    return (linears, before, after) if are_alike(linears) else None


def _join(edits: Edits, conv: Op, attrs: CausalConv, linears: list[Op], before: Op, after: Op) -> None:
    joined = join_projections(edits, linears, "bcx")
    edits.replace(before)
    edits.replace(after)
    inputs = conv.inputs | {"x": joined.op.out}
    edits.replace(conv, replace(conv, attrs=GatedConv(attrs.taps), inputs=inputs, outputs=after.outputs))

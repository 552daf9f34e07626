"""Joins a short convolution with its gates and with the projections that they are made of."""

from dataclasses import dataclass, replace

from mlxr.compiler.artifact.program import PhaseName
from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.causal_conv import CausalConv, GatedConv
from mlxr.compiler.ir.ops.elementwise import Multiply
from mlxr.compiler.ir.ops.linear import Linear
from mlxr.compiler.passes.base import Edits, PassResult, sibling, sole_producer


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
        if "query_tiles" not in edits.graph and not any(value.name == "query_tiles" for value in edits.values):
            edits.declare(replace(edits.graph.value("query_start"), name="query_tiles", shape=("tiles", 2)))
        return replace(conv, inputs=conv.inputs | {"query_tiles": "query_tiles"})


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
    first = linears[0]
    same = first.inputs["x"], first.attrs, first.inputs.keys()
    alike = all((op.inputs["x"], op.attrs, op.inputs.keys()) == same for op in linears)
    return (linears, before, after) if alike else None


def _join(edits: Edits, conv: Op, attrs: CausalConv, linears: list[Op], before: Op, after: Op) -> None:
    graph, first = edits.graph, linears[0]
    weights = [op.inputs["weight"] for op in linears]
    inputs = {"x": first.inputs["x"], "weight": edits.concat(sibling(weights[0], "bcx"), weights)}
    if "bias" in first.inputs:
        biases = [op.inputs["bias"] for op in linears]
        inputs["bias"] = edits.concat(sibling(biases[0], "bcx_bias"), biases)
    out = graph.value(first.out)
    width = sum(rows for name in weights if isinstance(rows := graph.value(name).shape[0], int))
    joined = edits.declare(replace(out, name=sibling(out.name, "bcx_projected"), shape=(out.shape[0], width)))
    for op in (*linears, before, after):
        edits.replace(op)
    # All projections read y alone: the place of the first one is after it and before everything that reads them.
    place = min(linears, key=lambda op: graph.index(op.name))
    edits.replace(place, replace(first, name=joined, inputs=inputs, outputs={"out": joined}))
    inputs = conv.inputs | {"x": joined}
    edits.replace(conv, replace(conv, attrs=GatedConv(attrs.taps), inputs=inputs, outputs=after.outputs))

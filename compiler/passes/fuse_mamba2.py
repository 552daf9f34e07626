"""Joins the parts of a Mamba-2 layer: its projections into one, and, for decode, its convolution with its scan."""

from dataclasses import dataclass, replace
from typing import Any

from mlxr.compiler.artifact.program import PhaseName
from mlxr.compiler.formats.stores import CONV_STATES, STATES
from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.causal_conv import CausalConv
from mlxr.compiler.ir.ops.linear import Linear
from mlxr.compiler.ir.ops.mamba2 import PARTS, ConvSsd, Mamba2
from mlxr.compiler.ir.ops.ssd import OF_HEADS, Ssd
from mlxr.compiler.passes.base import Edits, PassResult, sibling, sole_producer

_JOINED = ("gate", *PARTS, "dt")
"""The ports whose projections are joined, in the order of the columns."""
_TABLES = ("query_start", "state_table")


@dataclass(frozen=True)
class FuseMamba2:
    """Fuses the projections of a Mamba-2 layer, and its convolutions.

    1. In decode, mamba2 of linear(y, z), linear(y, x), linear(y, B), linear(y, C), linear(y, dt) ->
       conv_ssd(linear(y, [z; x; B; C; dt])).
    2. In prefill, the same -> ssd(causal_conv(linear(y, [z; x; B; C; dt]))).

    Does not fire when the projections read different y, when only some have a bias, or when something else reads their
    results.
    """

    phase: PhaseName

    @property
    def name(self) -> str:
        """The pass's name, with its option."""
        return f"fuse_mamba2[{self.phase}]"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rules to every layer."""
        edits = Edits(graph)
        for op, attrs in graph.ops_of(Mamba2):
            linears = _projections(graph, op)
            if linears is not None:
                joined, firsts = _join(edits, linears)
                self._scan(edits, op, attrs, joined, firsts)
        return edits.result()

    def _scan(self, edits: Edits, op: Op, attrs: Mamba2, joined: str, firsts: dict[str, int]) -> None:
        weights = [op.inputs[f"{part}_conv"] for part in PARTS]
        filters = {"weight": edits.concat(sibling(weights[0], "conv"), weights)}
        if "x_conv_bias" in op.inputs:
            biases = [op.inputs[f"{part}_conv_bias"] for part in PARTS]
            filters["bias"] = edits.concat(sibling(biases[0], "conv_bias"), biases)
        of_heads = {port: op.inputs[port] for port in (*OF_HEADS, *_TABLES, STATES)}
        own = {"dt": joined, "gate": joined} if "gate" in firsts else {"dt": joined}
        sizes: dict[str, Any] = {name: value for name, value in attrs.attributes.items() if not name.endswith("_first")}
        begin = {f"{port}_first": firsts.get(port, 0) for port in ("x", "dt", "gate")}
        if self.phase == "decode":
            inputs = filters | own | of_heads | {"x": joined, CONV_STATES: op.inputs[CONV_STATES]}
            edits.replace(op, replace(op, attrs=ConvSsd(**sizes, **begin), inputs=inputs))
            return
        value = edits.graph.value(op.out)
        name = sibling(joined, "convolved")
        conv = edits.declare(replace(value, name=name, shape=(value.shape[0], attrs.channels)))
        inputs = filters | {"x": joined, CONV_STATES: op.inputs[CONV_STATES]}
        inputs |= {port: op.inputs[port] for port in _TABLES}
        convolution = Op(name, CausalConv(attrs.taps, "silu", firsts["x"]), inputs, {"out": conv}, op.layer)
        del sizes["taps"]
        begin |= {"x_first": 0, "b_first": attrs.width, "c_first": attrs.width + attrs.shared_width}
        scan = replace(op, attrs=Ssd(**sizes, **begin), inputs=own | of_heads | dict.fromkeys(PARTS, conv))
        edits.replace(op, convolution, scan)


def _projections(graph: OpGraph, op: Op) -> dict[str, Op] | None:
    """The projections of the ports that an op has, if they can be one."""
    ports = [port for port in _JOINED if port in op.inputs]
    found = {port: linear for port in ports if (linear := sole_producer(graph, op.inputs[port], Linear)) is not None}
    if len(found) < len(ports):
        return None
    first, *others = found.values()
    alike = all(
        one.inputs["x"] == first.inputs["x"] and one.attrs == first.attrs and one.inputs.keys() == first.inputs.keys()
        for one in others
    )
    return found if alike else None


def _join(edits: Edits, linears: dict[str, Op]) -> tuple[str, dict[str, int]]:
    """The name of the joined projection's result, and the column with which each port's part begins."""
    graph, ops = edits.graph, list(linears.values())
    firsts, width = {}, 0
    for port, op in linears.items():
        columns = graph.value(op.out).shape[1]
        assert isinstance(columns, int), "only rows have symbolic dims"
        firsts[port], width = width, width + columns
    weights = [op.inputs["weight"] for op in ops]
    inputs = {"x": ops[0].inputs["x"], "weight": edits.concat(sibling(weights[0], "in"), weights)}
    if "bias" in ops[0].inputs:
        biases = [op.inputs["bias"] for op in ops]
        inputs["bias"] = edits.concat(sibling(biases[0], "in_bias"), biases)
    out = graph.value(ops[0].out)
    joined = edits.declare(replace(out, name=sibling(out.name, "in_projected"), shape=(out.shape[0], width)))
    for op in ops:
        edits.replace(op)
    # All read y alone: the first one's place is after it, and before everything that reads them.
    place = min(ops, key=lambda op: graph.index(op.name))
    edits.replace(place, replace(place, name=joined, inputs=inputs, outputs={"out": joined}))
    return joined, firsts

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
from mlxr.compiler.passes.join_projections import are_alike, join_projections

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
                joined = join_projections(edits, list(linears.values()), "in")
                self._scan(edits, op, attrs, joined.op.out, dict(zip(linears, joined.firsts, strict=True)))
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
    return found if are_alike(list(found.values())) else None

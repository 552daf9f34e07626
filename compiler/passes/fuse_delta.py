"""Joins the projections of a gated delta layer, and in decode its convolution, rule and gated norm."""

from dataclasses import dataclass, replace

from mlxr.compiler.artifact.program import PhaseName
from mlxr.compiler.formats.stores import CONV_STATES, STATES
from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.delta_net import FILTERS, DeltaDecode, DeltaNet
from mlxr.compiler.ir.ops.gated_norm import GatedNorm
from mlxr.compiler.ir.ops.linear import Linear
from mlxr.compiler.passes.base import Edits, PassResult, sibling, sole_producer
from mlxr.compiler.passes.join_projections import are_alike, columns_of, join_projections

_ALIGNED = 4
"""Columns of which a row is a multiple, so that kernels may read four neighbours at once."""
_TABLES = ("query_start", "state_table")
_JOINED = ("q", "k", "v")


@dataclass(frozen=True)
class FuseDelta:
    """Joins what lies in gated delta layers beside each other.

    1. delta_net(linear(x, q), linear(x, k), linear(x, v), a, b) and gated_norm(gate) -> the same of
       linear(x, [q; k; v]); with what of gate, a and b are linears of x, too, if rows remain multiples of four columns.
    2. In prefill: delta_net -> gated_delta(causal_conv(that)).
    3. In decode: gated_norm(delta_net) -> delta_decode(that).
    """

    phase: PhaseName

    @property
    def name(self) -> str:
        """The pass's name, with its option."""
        return f"fuse_delta[{self.phase}]"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rules to every layer."""
        edits = Edits(graph)
        for op, attrs in graph.ops_of(DeltaNet):
            norm = graph.sole_consumer(op.out)
            if norm is not None and isinstance(norm.attrs, GatedNorm):
                self._fuse(edits, op, attrs, norm)
        return edits.result()

    def _fuse(self, edits: Edits, op: Op, attrs: DeltaNet, norm: Op) -> None:
        graph = edits.graph
        linears = {port: sole_producer(graph, name, Linear) for port, name in _read(op, norm).items()}
        first = linears["q"]
        assert first is not None and linears["k"] and linears["v"], "the builder makes projections of the parts"
        alike = {port: one for port, one in linears.items() if one is not None and are_alike((first, one))}
        assert {*_JOINED} <= {*alike}, "of one input"
        if sum(columns_of(graph, one) for one in alike.values()) % _ALIGNED:
            alike = {port: one for port, one in alike.items() if port in (*_JOINED, "gate")}
        joined = join_projections(edits, list(alike.values()), "in")
        firsts = dict(zip(alike, joined.firsts, strict=True))
        weight = edits.concat(sibling(op.inputs["v_conv"], "conv"), [op.inputs[port] for port in FILTERS])
        read = {port: joined.op.out if port in alike else name for port, name in _read(op, norm).items()}
        columns = {"k_first": "k", "v_first": "v", "decay_first": "a", "beta_first": "b"}
        attrs = DeltaNet(**attrs.attributes | {name: firsts.get(port, 0) for name, port in columns.items()})  # type: ignore[arg-type]
        fuse = _as_decode if self.phase == "decode" else _as_prefill
        fuse(edits, op, attrs, norm, read, weight, firsts.get("gate", 0))


def _read(op: Op, norm: Op) -> dict[str, str]:
    """What the layer reads of tokens, in the order of joined columns."""
    return {port: op.inputs[port] for port in _JOINED} | {
        "gate": norm.inputs["gate"],
        "a": op.inputs["a"],
        "b": op.inputs["b"],
    }


def _as_prefill(
    edits: Edits, op: Op, attrs: DeltaNet, norm: Op, read: dict[str, str], weight: str, gate_first: int
) -> None:
    tables = {port: op.inputs[port] for port in _TABLES}
    out = edits.graph.value(op.inputs["v"])
    conv = edits.declare(replace(out, name=sibling(op.name, "convolved"), shape=(out.shape[0], attrs.channels)))
    inputs = {"x": read["q"], "weight": weight} | tables | {CONV_STATES: op.inputs[CONV_STATES]}
    convolution = Op(conv, attrs.convolution, inputs, {"out": conv}, op.layer)
    parts = dict.fromkeys(_JOINED, conv) | {port: read[port] for port in "ab"}
    numbers = {port: op.inputs[port] for port in ("rate", "dt_bias")}
    inputs = parts | numbers | tables | {STATES: op.inputs[STATES]}
    edits.replace(op, convolution, replace(op, attrs=attrs.rule, inputs=inputs))
    gated = replace(norm.attrs_as(GatedNorm), first=gate_first)
    edits.replace(norm, replace(norm, attrs=gated, inputs=norm.inputs | {"gate": read["gate"]}))


def _as_decode(
    edits: Edits, op: Op, attrs: DeltaNet, norm: Op, read: dict[str, str], weight: str, gate_first: int
) -> None:
    gated = norm.attrs_as(GatedNorm)
    assert gated.eps is not None and not gated.gate_first and gated.groups == attrs.num_heads, "a norm of each head"
    fused = DeltaDecode(**attrs.attributes, eps=gated.eps, activation=gated.activation, gate_column=gate_first)  # type: ignore[arg-type]
    kept = {port: op.inputs[port] for port in ("rate", "dt_bias", *_TABLES, CONV_STATES, STATES)}
    inputs = {"x": read["q"], "a": read["a"], "b": read["b"], "gate": read["gate"], "weight": weight}
    edits.replace(op)
    edits.replace(norm, replace(norm, attrs=fused, inputs=inputs | kept | {"norm": norm.inputs["weight"]}))

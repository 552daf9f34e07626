"""Joins the projections of a gated delta layer, and in decode its convolution, rule and gated norm."""

from dataclasses import dataclass, replace

from mlxr.compiler.artifact.program import PhaseName
from mlxr.compiler.formats.stores import CONV_STATES, STATES
from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.delta_net import FILTERS, DeltaDecode, DeltaNet
from mlxr.compiler.ir.ops.gated_norm import GatedNorm
from mlxr.compiler.ir.ops.latent import HeadProduct
from mlxr.compiler.ir.ops.linear import Linear
from mlxr.compiler.passes.base import Edits, PassResult, sibling, sole_producer
from mlxr.compiler.passes.join_projections import are_alike, columns_of, join_projections

_ALIGNED = 4
"""Columns of which a row is a multiple, so that kernels may read four neighbours at once."""
_ALIGNED_RANK = 8
"""The same of columns that a kernel multiplies by a matrix of its own."""
_TABLES = ("query_start", "state_table")
_JOINED = ("q", "k", "v")
_MATRICES = {"decay_b": "a", "gate_b": "gate"}
"""By the port of a second projection's matrix: that of its input."""


@dataclass(frozen=True)
class FuseDelta:
    """Joins what lies in gated delta layers beside each other.

    1. delta_net(linear(x, q), linear(x, k), linear(x, v), a, b) and gated_norm(gate) -> the same of
       linear(x, [q; k; v]); with what of gate, a and b are linears of x, too, if rows remain multiples of four columns.
    2. In prefill: delta_net -> gated_delta(causal_conv(that)).
    3. In decode: gated_norm(delta_net) -> delta_decode(that). Decays by channels and a gate that are linears of narrow
       linears of x become parts of it: delta_decode also gets the wide matrices.

    In either phase narrow linears of x, of which others make decays by channels and the gate, are joined as well; in
    prefill these others become head_products of some columns.
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
        seconds = _seconds(graph, op, attrs, norm)
        read = _read(op, norm) | {port: second.inputs["x"] for port, second in seconds.items()}
        joined, firsts = _join(edits, read, seconds)
        read |= dict.fromkeys(firsts, joined)
        columns = {"k_first": "k", "v_first": "v", "decay_first": "a", "beta_first": "b"}
        attrs = DeltaNet(**attrs.attributes | {name: firsts.get(port, 0) for name, port in columns.items()})  # type: ignore[arg-type]
        weight = edits.concat(sibling(op.inputs["v_conv"], "conv"), [op.inputs[port] for port in FILTERS])
        if self.phase == "decode":
            _as_decode(edits, op, attrs, norm, read, weight, firsts.get("gate", 0), seconds)
            return
        for port, second in seconds.items():
            rank = graph.value(second.inputs["weight"]).shape[1]
            assert isinstance(rank, int), "of a weight"
            product = HeadProduct(1, rank, second.attrs_as(Linear).dtype, firsts[port])
            edits.replace(second, replace(second, attrs=product, inputs=second.inputs | {"x": joined}))
            read[port], firsts[port] = second.out, 0
        attrs = replace(attrs, decay_first=firsts.get("a", 0))
        _as_prefill(edits, op, attrs, norm, read, weight, firsts.get("gate", 0))


def _join(edits: Edits, read: dict[str, str], seconds: dict[str, Op]) -> tuple[str, dict[str, int]]:
    """Joins the projections of one x among what a layer reads: the result, and by port the columns where they begin."""
    graph = edits.graph
    linears = {port: linear for port, name in read.items() if (linear := sole_producer(graph, name, Linear))}
    assert {*_JOINED} <= {*linears}, "the builder makes projections of the parts"
    alike = {port: one for port, one in linears.items() if are_alike((linears["q"], one))}
    if sum(columns_of(graph, one) for one in alike.values()) % (_ALIGNED_RANK if seconds else _ALIGNED):
        alike = {port: one for port, one in alike.items() if port in (*_JOINED, "gate", *seconds)}
    assert {*_JOINED, *seconds} <= {*alike}, "of one input"
    joined = join_projections(edits, list(alike.values()), "in")
    return joined.op.out, dict(zip(alike, joined.firsts, strict=True))


def _seconds(graph: OpGraph, op: Op, attrs: DeltaNet, norm: Op) -> dict[str, Op]:
    """The second projections of decays and gate, if each has two and what lies between is of one width; else none.

    Elements of keys and of values, and the width, must be whole vectors, which kernels read.
    """
    seconds: dict[str, Op] = {}
    q, ranks = sole_producer(graph, op.inputs["q"], Linear), set()
    for port in ("gate", "a"):
        second = sole_producer(graph, _read(op, norm)[port], Linear)
        first = sole_producer(graph, second.inputs["x"], Linear) if second else None
        if second and first and q and are_alike((q, first)) and set(second.inputs) == {"x", "weight"}:
            seconds[port] = second
            ranks.add(columns_of(graph, first))
    vectors = all(columns % _ALIGNED_RANK == 0 for columns in (attrs.key_dim, attrs.value_dim, *ranks))
    return seconds if attrs.per_channel and len(seconds) == 2 and len(ranks) == 1 and vectors else {}


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
    edits: Edits,
    op: Op,
    attrs: DeltaNet,
    norm: Op,
    read: dict[str, str],
    weight: str,
    gate_first: int,
    seconds: dict[str, Op],
) -> None:
    gated = norm.attrs_as(GatedNorm)
    assert gated.eps is not None and not gated.gate_first and gated.groups == attrs.num_heads, "a norm of each head"
    matrices = {port: seconds[of].inputs["weight"] for port, of in _MATRICES.items() if of in seconds}
    ranks = {edits.graph.value(name).shape[1] for name in matrices.values()} or {0}
    own = {"eps": gated.eps, "activation": gated.activation, "gate_column": gate_first, "rank": ranks.pop()}
    fused = DeltaDecode(**attrs.attributes | own)  # type: ignore[arg-type]
    kept = {port: op.inputs[port] for port in ("rate", "dt_bias", *_TABLES, CONV_STATES, STATES)}
    inputs = {"x": read["q"], "a": read["a"], "b": read["b"], "gate": read["gate"], "weight": weight}
    for absorbed in (op, *seconds.values()):
        edits.replace(absorbed)
    inputs |= kept | matrices | {"norm": norm.inputs["weight"]}
    edits.replace(norm, replace(norm, attrs=fused, inputs=inputs))

"""Merges the three projections that feed an attention into one."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.attention import GateHeads, Split, SplitQk
from mlxr.compiler.ir.ops.linear import Linear, Projection
from mlxr.compiler.passes.attention_walk import AttentionSite, attention_sites, source_of
from mlxr.compiler.passes.base import Edits, PassResult, sibling, sole_producer
from mlxr.compiler.passes.join_projections import are_alike, columns_of, join_projections

_ALIGNED = 8
"""Columns of which a row is a multiple, so that kernels may read 16 bytes of any of its heads."""


@dataclass(frozen=True)
class MergeQkv:
    """Merges the q, k and v projections of a layer.

    1. linear(x, q), linear(x, k), linear(x, v) that reach one attention and its cache write, perhaps through a norm, a
       rope and a temperature -> split(linear(x, [q; k; v])).
    2. The same with projections whose results are clamped -> split(projection(x, [q; k; v])).
    3. The same where values are made of the keys, of linear(x, q) and linear(x, k) -> split_qk(linear(x, [q; k])).
    4. Rules 1 and 2 with a gate_heads(attention, linear(x, gate)) -> split(linear(x, [q; k; v; gate])), and a
       gate_heads of its last columns, if rows remain multiples of 16 bytes.

    Does not fire when they read different x or only some have a bias.
    """

    name: str = "merge_qkv"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every layer."""
        edits = Edits(graph)
        for site in attention_sites(graph):
            paths = [(site.q, 1), (site.k, 2)] if site.shares_source else [(site.q, 1), (site.k, 1), (site.v, 1)]
            linears = [op for path, n in paths if (op := source_of(graph, path, Linear, Projection, readers=n))]
            if len({op.name for op in linears}) == len(paths) and are_alike(linears):
                self._merge(edits, linears, None if site.shares_source else self._gate(graph, site, linears))
        return edits.result()

    def _gate(self, graph: OpGraph, site: AttentionSite, linears: list[Op]) -> Op | None:
        """The gate of the attention's result, if its projection can be merged, too."""
        linear = sole_producer(graph, site.gate.inputs["gate"], Linear, Projection) if site.gate else None
        if linear is None or not are_alike([*linears, linear]):
            return None
        return site.gate if columns_of(graph, linear) % _ALIGNED == 0 else None

    def _merge(self, edits: Edits, linears: list[Op], gate: Op | None) -> None:
        graph, parts = edits.graph, linears
        if gate is not None:
            producer = graph.producer(gate.inputs["gate"])
            assert producer is not None, "a projection"
            linears = [*parts, producer]
        joined = join_projections(edits, linears, "qkv")
        qkv, merged = joined.op.out, joined.op
        q, k, *v = (columns_of(graph, op) for op in parts)
        split = Op(
            sibling(qkv, "split"),
            Split(q, k, *v) if v else SplitQk(q, k, 0),
            {"x": qkv},
            {port: op.out for port, op in zip("qkv", parts, strict=False)},
            merged.layer,
        )
        edits.replace(joined.place, merged, split)
        if gate is not None:
            attrs = replace(gate.attrs_as(GateHeads), first=joined.firsts[-1])
            edits.replace(gate, replace(gate, attrs=attrs, inputs=gate.inputs | {"gate": qkv}))

"""Joins the first projections of latent attention, and gives its prefill the batch's tiles of queries."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from mlxr.compiler.artifact.program import PhaseName
from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.latent import LatentAttention, LatentNormWrite, LatentQueries, LatentWrite
from mlxr.compiler.ir.ops.linear import Linear
from mlxr.compiler.ir.ops.norm import Norm
from mlxr.compiler.passes.base import Edits, PassResult, sibling, sole_producer


@dataclass(frozen=True)
class FuseLatent:
    """Joins what reads the same x, so that one launch reads one matrix.

    1. norm(linear(x, q_a)), latent_write(linear(x, kv_a)) -> latent_norm_write(linear(x, [q_a; kv_a])).
    2. latent_queries(linear(x, q)), latent_write(linear(x, kv_a)) -> the same of linear(x, [q; kv_a]).
    3. prefill: latent_attention also gets the tiles of queries.

    1 and 2 do not fire when the projections read different x, or when something else reads their results. 1 does not
    fire when the two norms differ in their epsilon.
    """

    phase: PhaseName

    @property
    def name(self) -> str:
        """The pass's name, with its option."""
        return f"fuse_latent[{self.phase}]"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rules to every layer."""
        edits = Edits(graph)
        for write, reader, queries, latent in _matches(graph):
            joined, first = _join(edits, queries, latent)
            attrs, inputs = write.attrs_as(LatentWrite), write.inputs | {"x": joined}
            if isinstance(reader.attrs, LatentQueries):
                edits.replace(write, replace(write, attrs=replace(attrs, first=first), inputs=inputs))
                edits.replace(reader, replace(reader, inputs=reader.inputs | {"x": joined}))
                continue
            same = {field.name: getattr(attrs, field.name) for field in fields(attrs)}
            fused = LatentNormWrite(**same | {"first": first, "q_rank": first})
            inputs |= {"q_norm": reader.inputs["weight"]}
            edits.replace(reader, replace(write, attrs=fused, inputs=inputs, outputs=write.outputs | reader.outputs))
            edits.replace(write)
        if self.phase == "prefill":
            for op, _ in graph.ops_of(LatentAttention):
                _declare_tiles(edits)
                edits.replace(op, replace(op, inputs=op.inputs | {"query_tiles": "query_tiles"}))
        return edits.result()


def _matches(graph: OpGraph) -> Iterator[tuple[Op, Op, Op, Op]]:
    """Each write, the reader of the queries' first projection, that projection, and the latent's."""
    for write, attrs in graph.ops_of(LatentWrite):
        latent = sole_producer(graph, write.inputs["x"], Linear)
        others = graph.consumers(latent.inputs["x"]) if latent else []
        for queries in others:
            reader = graph.sole_consumer(queries.out) if isinstance(queries.attrs, Linear) else None
            if latent and reader and queries is not latent and _alike(queries, latent) and _takes(reader, attrs):
                yield write, reader, queries, latent


def _takes(reader: Op, write: LatentWrite) -> bool:
    if isinstance(reader.attrs, LatentQueries):
        return True
    norm = reader.attrs
    plain = isinstance(norm, Norm) and (norm.groups, norm.kind, norm.eps) == (1, "rms", write.eps)
    return plain and set(reader.inputs) == {"x", "weight"}


def _alike(a: Op, b: Op) -> bool:
    return a.attrs == b.attrs and a.inputs["x"] == b.inputs["x"] and set(a.inputs) == set(b.inputs) == {"x", "weight"}


def _join(edits: Edits, queries: Op, latent: Op) -> tuple[str, int]:
    """Puts the projection by both weights in place of the queries'; returns its result, and where the latent begins."""
    weights = [op.inputs["weight"] for op in (queries, latent)]
    out = edits.graph.value(queries.out)
    widths = [width for op in (queries, latent) if isinstance(width := edits.graph.value(op.out).shape[1], int)]
    name = sibling(out.name, "qkv_a_projected")
    edits.declare(replace(out, name=name, shape=(out.shape[0], sum(widths))))
    inputs = {"x": queries.inputs["x"], "weight": edits.concat(sibling(weights[0], "qkv_a"), weights)}
    edits.replace(queries, replace(queries, name=name, inputs=inputs, outputs={"out": name}))
    edits.replace(latent)
    return name, widths[0]


def _declare_tiles(edits: Edits) -> None:
    if "query_tiles" not in edits.graph and not any(v.name == "query_tiles" for v in edits.values):
        edits.declare(replace(edits.graph.value("positions"), name="query_tiles", shape=("tiles", 2)))

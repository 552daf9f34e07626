"""Joins the first projections of latent attention, and gives its prefill the batch's tiles of queries."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from mlxr.compiler.artifact.program import PhaseName
from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.latent import LatentAttention, LatentNormWrite, LatentQueries, LatentWrite
from mlxr.compiler.ir.ops.linear import Linear, Projection
from mlxr.compiler.ir.ops.norm import Norm
from mlxr.compiler.passes.base import Edits, PassResult, as_projection, sole_producer
from mlxr.compiler.passes.join_projections import are_alike, join_projections


@dataclass(frozen=True)
class FuseLatent:
    """Joins what reads the same x, so that one launch reads one matrix.

    1. prefill: norm(linear(x, q_a)), latent_write(linear(x, kv_a)) -> latent_norm_write(linear(x, [q_a; kv_a])).
    2. decode: linear(norm(linear(x, q_a)), q_b), latent_write(linear(x, kv_a)) ->
       projection(y, norm, q_b), latent_write(y), with y = linear(x, [q_a; kv_a]).
    3. latent_queries(linear(x, q)), latent_write(linear(x, kv_a)) -> the same of linear(x, [q; kv_a]).
    4. prefill: latent_attention also gets the tiles of queries.

    1, 2 and 3 do not fire when the projections read different x, or when something else reads their results. 1 does not
    fire when the two norms differ in their epsilon, and 2 not when something else reads the norm.
    """

    phase: PhaseName

    @property
    def name(self) -> str:
        """The pass's name, with its option."""
        return f"fuse_latent[{self.phase}]"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rules to every layer."""
        edits = Edits(graph)
        for write, reader, queries, latent in _matches(graph, self.phase):
            join = join_projections(edits, (queries, latent), "qkv_a")
            joined, first = join.op.out, join.firsts[1]
            attrs, inputs = write.attrs_as(LatentWrite), write.inputs | {"x": joined}
            if isinstance(reader.attrs, Norm) and self.phase == "prefill":
                same = {field.name: getattr(attrs, field.name) for field in fields(attrs)}
                fused = LatentNormWrite(**same | {"first": first, "q_rank": first})
                inputs |= {"q_norm": reader.inputs["weight"]}
                edits.replace(
                    reader, replace(write, attrs=fused, inputs=inputs, outputs=write.outputs | reader.outputs)
                )
                edits.replace(write)
                continue
            edits.replace(write, replace(write, attrs=replace(attrs, first=first), inputs=inputs))
            if isinstance(reader.attrs, LatentQueries):
                edits.replace(reader, replace(reader, inputs=reader.inputs | {"x": joined}))
                continue
            edits.replace(reader)
            second = graph.consumers(reader.out)[0]
            edits.replace(second, _with_norm(second, reader, joined, first))
        if self.phase == "prefill":
            for op, _ in graph.ops_of(LatentAttention):
                edits.replace(op, replace(op, inputs=op.inputs | {"query_tiles": edits.query_tiles()}))
        return edits.result()


def _matches(graph: OpGraph, phase: PhaseName) -> Iterator[tuple[Op, Op, Op, Op]]:
    """Each write, the reader of the queries' first projection, that projection, and the latent's."""
    for write, attrs in graph.ops_of(LatentWrite):
        latent = sole_producer(graph, write.inputs["x"], Linear)
        others = graph.consumers(latent.inputs["x"]) if latent else []
        for queries in others:
            reader = graph.sole_consumer(queries.out) if isinstance(queries.attrs, Linear) else None
            if not latent or not reader or queries is latent or not are_alike((queries, latent)):
                continue
            if isinstance(reader.attrs, LatentQueries) or (_is_plain(reader) and _takes(graph, phase, reader, attrs)):
                yield write, reader, queries, latent


def _is_plain(op: Op) -> bool:
    norm = op.attrs
    return isinstance(norm, Norm) and (norm.groups, norm.kind) == (1, "rms") and set(op.inputs) == {"x", "weight"}


def _takes(graph: OpGraph, phase: PhaseName, norm: Op, write: LatentWrite) -> bool:
    """Whether the phase has an op for the norm: that of the write, or the projection that reads it alone."""
    if phase == "prefill":
        return norm.attrs_as(Norm).eps == write.eps
    second = graph.sole_consumer(norm.out)
    return second is not None and isinstance(second.attrs, Linear)


def _with_norm(second: Op, norm: Op, x: str, columns: int) -> Op:
    """The second projection of the queries with the norm before it, of the first columns of x."""
    fused = as_projection(second)
    attrs = replace(fused.attrs_as(Projection), eps=norm.attrs_as(Norm).eps, norm_kind="rms", columns=columns)
    return replace(fused, attrs=attrs, inputs=fused.inputs | {"x": x, "norm": norm.inputs["weight"]})

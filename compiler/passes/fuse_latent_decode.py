"""Fuses what latent attention does between its projections into one op, for decode."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.latent import HeadProduct, LatentAttention, LatentQueries, LatentWrite
from mlxr.compiler.ir.ops.latent_decode import LatentDecode
from mlxr.compiler.passes.base import Edits, PassResult, sole_producer


@dataclass(frozen=True)
class FuseLatentDecode:
    """Fuses the write of a layer's rows, its queries, its attention and the products of the heads' results.

    1. latent_write(kv), head_product(latent_attention(latent_queries(q, k_b)), v_b) -> latent_decode(q, kv, k_b, v_b).

    Does not fire when something else reads a result between them, when write and queries differ in how they rotate, or
    when the attention comes before the write.
    """

    name: str = "fuse_latent_decode"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every layer."""
        edits = Edits(graph)
        for write, queries, attention, product in _matches(graph):
            inputs = {
                **queries.inputs,
                **write.inputs,
                **attention.inputs,
                "q": queries.inputs["x"],
                "kv": write.inputs["x"],
                "k_b": queries.inputs["weight"],
                "v_b": product.inputs["weight"],
            }
            ports = LatentDecode.inputs
            fused = replace(
                product,
                attrs=_attrs(write.attrs_as(LatentWrite), queries.attrs_as(LatentQueries), attention),
                inputs={port: inputs[port] for port in ports},
                outputs=attention.outputs | product.outputs,
            )
            for op in (write, queries, attention):
                edits.replace(op)
            edits.replace(product, fused)
        return edits.result()


def _matches(graph: OpGraph) -> Iterator[tuple[Op, Op, Op, Op]]:
    """The write, the queries, the attention, and the product of its results, of each layer."""
    writes = {op.layer: op for op, _ in graph.ops_of(LatentWrite)}
    for attention, _ in graph.ops_of(LatentAttention):
        write = writes.get(attention.layer)
        queries = sole_producer(graph, attention.inputs["q"], LatentQueries)
        product = graph.sole_consumer(attention.out)
        if write is None or queries is None or product is None or not isinstance(product.attrs, HeadProduct):
            continue
        if graph.index(write.name) < graph.index(attention.name) and _rotate_alike(write, queries, attention):
            yield write, queries, attention, product


def _rotate_alike(write: Op, queries: Op, attention: Op) -> bool:
    a, b = write.attrs_as(LatentWrite), queries.attrs_as(LatentQueries)
    alike = (a.rope_dim, a.rope_layout, a.rope_scale) == (b.rope_dim, b.rope_layout, b.rope_scale)
    same = all(write.inputs[port] == queries.inputs[port] for port in ("positions", "frequencies"))
    return alike and same and attention.inputs["positions"] == write.inputs["positions"]


def _attrs(write: LatentWrite, queries: LatentQueries, attention: Op) -> LatentDecode:
    attrs = attention.attrs_as(LatentAttention)
    return LatentDecode(
        **{field.name: getattr(attrs, field.name) for field in fields(attrs)},
        head_dim=queries.head_dim,
        first=write.first,
        rope_layout=write.rope_layout,
        rope_scale=write.rope_scale,
        eps=write.eps,
    )

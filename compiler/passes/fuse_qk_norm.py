"""Fuses the norms of queries and keys into one op over the merged projection."""

from dataclasses import dataclass, replace
from typing import get_args

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.op_kind import NormScope
from mlxr.compiler.ir.ops.attention import Attention, Split
from mlxr.compiler.ir.ops.norm import Norm, QkNorm
from mlxr.compiler.passes.attention_walk import attention_sites
from mlxr.compiler.passes.base import Edits, PassResult, sibling, sole_producer


@dataclass(frozen=True)
class FuseQkNorm:
    """Fuses the norms between the merged projection and the attention.

    1. With q, k, v = split(qkv): norm(q), norm(k) that reach one attention and its cache write, perhaps through a rope
       and a temperature -> split(qk_norm(qkv)).

    Does not fire when q, k or qkv has another consumer, the norms differ in kind or eps, only one has a bias, or the
    groups of columns of one are neither heads nor the whole row.
    """

    name: str = "fuse_qk_norm"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every layer."""
        edits = Edits(graph)
        for site in attention_sites(graph):
            q, k, heads = site.q.norm, site.k.norm, site.attention.attrs_as(Attention)
            split = sole_producer(graph, q.inputs["x"], Split) if q else None
            if q is None or k is None or split is None or not graph.sole_consumer(split.inputs["x"]):
                continue
            reads = q.inputs["x"] == split.outputs["q"] and k.inputs["x"] == split.outputs["k"]
            scope = _scope(graph, heads, q, k)
            if reads and scope and graph.sole_consumer(k.inputs["x"]) and _alike(q, k):
                self._fuse(edits, site.attention, split, q, k, scope)
        return edits.result()

    def _fuse(self, edits: Edits, attention: Op, split: Op, q: Op, k: Op, scope: NormScope) -> None:
        qkv = edits.graph.value(split.inputs["x"])
        inputs = {"qkv": qkv.name, "q_norm": q.inputs["weight"], "k_norm": k.inputs["weight"]}
        if "bias" in q.inputs:
            inputs |= {"q_norm_bias": q.inputs["bias"], "k_norm_bias": k.inputs["bias"]}
        heads, norm = attention.attrs_as(Attention), q.attrs_as(Norm)
        attrs = QkNorm(
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            head_dim=heads.head_dim,
            scope=scope,
            kind=norm.kind,
            eps=norm.eps,
        )
        name = sibling(qkv.name, "qkv_normed")
        normed = edits.declare(replace(qkv, name=name))
        outputs = {"q": q.out, "k": k.out, "v": split.outputs["v"]}
        edits.replace(
            split,
            Op(name, attrs, inputs, {"out": normed}, split.layer),
            replace(split, inputs={"x": normed}, outputs=outputs),
        )
        edits.replace(q)
        edits.replace(k)


def _alike(q: Op, k: Op) -> bool:
    a, b = q.attrs_as(Norm), k.attrs_as(Norm)
    return (a.kind, a.eps) == (b.kind, b.eps) and ("bias" in q.inputs) == ("bias" in k.inputs)


def _scope(graph: OpGraph, attention: Attention, q: Op, k: Op) -> NormScope | None:
    """The scope of both norms, or None if no scope of qk_norm describes them."""
    norms = ((q, attention.num_heads), (k, attention.num_kv_heads))
    scopes: tuple[NormScope, ...] = get_args(NormScope)
    for scope in scopes:
        if all(
            norm.attrs_as(Norm).groups == (1 if scope == "all" else heads)
            and graph.value(norm.inputs["weight"]).shape == (attention.head_dim * (1 if scope == "head" else heads),)
            for norm, heads in norms
        ):
            return scope
    return None

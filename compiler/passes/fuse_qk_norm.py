"""Fuses the norms of queries and keys into one op over the merged projection."""

from dataclasses import dataclass, replace
from typing import get_args

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.op_kind import NormKind, NormScope
from mlxr.compiler.ir.ops.attention import Attention, GateHeads, Split
from mlxr.compiler.ir.ops.norm import Norm, QkNorm
from mlxr.compiler.ir.ops.rope import Rope
from mlxr.compiler.ir.ops.shared_norm import MeanSquares, NormOfPart, QkMeanSquares
from mlxr.compiler.passes.attention_walk import AttentionSite, attention_sites, same_rotation, source_of
from mlxr.compiler.passes.base import Edits, PassResult, sibling


@dataclass(frozen=True)
class FuseQkNorm:
    """Fuses the norms between the merged projection and the attention.

    1. With q, k, v = split(qkv): norm(q), norm(k) that reach one attention and its cache write, perhaps through a rope
       and a temperature -> split(qk_norm(qkv)).
    2. The same with norm_of_part(q, m), norm_of_part(k, m), where m is the sum over ranks of mean_squares(q, k) ->
       qk_mean_squares(qkv), and split(qk_norm(qkv, m)).
    3. norm(rope(q)), norm(rope(k)) -> split(qk_norm(qkv)), which rotates; both are rotated at the same positions with
       the same frequencies.
    4. Rules 1 and 3 with a norm of v by heads, without weights, or with values that are k before its norm, or that norm
       of it.

    Does not fire when q, k or qkv has another consumer, the norms differ in kind or eps, only one has a bias or a
    weight, the groups of columns of one are neither heads nor the whole row, or only one is rotated before its norm.
    """

    name: str = "fuse_qk_norm"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every layer."""
        edits = Edits(graph)
        for site in attention_sites(graph):
            q, k, split = site.q.norm, site.k.norm, source_of(graph, site.q, Split)
            if q is None or k is None or split is None or not _alone(graph, split):
                continue
            reads = site.q.source == split.outputs["q"] and site.k.source == split.outputs["k"]
            if not reads or source_of(graph, site.k, Split, readers=2 if site.shares_source else 1) is None:
                continue
            if site.q.rotated_first or site.k.rotated_first:
                scope = _scope(graph, site.attention.attrs_as(Attention), q, k)
                if (
                    scope in ("head", "heads")
                    and _alike(q, k)
                    and _rotated_alike(site)
                    and _takes_values(site, scope, q)
                ):
                    self._fuse(edits, site, split, q, k, scope)
                continue
            squares = [op for op in graph.consumers(k.inputs["x"]) if isinstance(op.attrs, MeanSquares)]
            if isinstance(q.attrs, NormOfPart):
                self._fuse_part(edits, site.attention, split, squares[0], q, k)
                continue
            scope = _scope(graph, site.attention.attrs_as(Attention), q, k)
            if scope and not squares and _alike(q, k) and _takes_values(site, scope, q):
                self._fuse(edits, site, split, q, k, scope)
        return edits.result()

    def _fuse(self, edits: Edits, site: AttentionSite, split: Op, q: Op, k: Op, scope: NormScope) -> None:
        norm, rope, v = q.attrs_as(Norm), None, site.v.norm
        biases = {f"{role}_norm_bias": op.inputs["bias"] for role, op in (("q", q), ("k", k)) if "bias" in op.inputs}
        if site.q.rotated_first:
            assert site.q.rope is not None and site.k.rope is not None, "both are rotated first"
            rope, rotation = site.q.rope.attrs_as(Rope), site.q.rope.inputs
            biases |= {port: rotation[port] for port in ("positions", "frequencies")}
            edits.replace(site.q.rope)
            edits.replace(site.k.rope)
        how = (scope, norm.kind, norm.eps)
        values = (site.write.inputs["v"], v is not None, site.shares_source)
        edits.replace(split, *_normed(edits, site.attention, split, (q, k), how, biases, values, rope))
        for op in (q, k, v):
            if op is not None:
                edits.replace(op)

    def _fuse_part(self, edits: Edits, attention: Op, split: Op, squares: Op, q: Op, k: Op) -> None:
        """Rule 2. The norm comes after the sum over the ranks, so it cannot take the place of the split."""
        heads, of = attention.attrs_as(Attention), squares.attrs_as(MeanSquares)
        packed = QkMeanSquares(
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            head_dim=heads.head_dim,
            q_width=of.q_width,
            k_width=of.k_width,
            counts_keys=of.counts_keys,
        )
        edits.replace(split)
        edits.replace(squares, replace(squares, attrs=packed, inputs={"qkv": split.inputs["x"]}))
        means = {"mean_squares": q.inputs["mean_squares"]}
        eps = q.attrs_as(NormOfPart).eps
        values = (split.outputs["v"], False, False)
        edits.replace(q, *_normed(edits, attention, split, (q, k), ("all", "rms", eps), means, values))
        edits.replace(k)


def _normed(
    edits: Edits,
    attention: Op,
    split: Op,
    norms: tuple[Op, Op],
    how: tuple[NormScope, NormKind, float],
    others: dict[str, str],
    values: tuple[str, bool, bool],
    rope: Rope | None = None,
) -> tuple[Op, Op]:
    """The norm of the packed projection, and the split of that.

    `values`: the name of the values, whether they are normalised, and whether they are made of keys.
    """
    (q, k), (scope, kind, eps), heads = norms, how, attention.attrs_as(Attention)
    kv_width = heads.num_kv_heads * heads.head_dim
    parts = Split(heads.num_heads * heads.head_dim, kv_width, heads.num_kv_heads * heads.value_dim)
    qkv = edits.graph.value(split.inputs["x"])
    attrs = QkNorm(
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        scope=scope,
        kind=kind,
        eps=eps,
        rotary_dim=rope.rotary_dim if rope else 0,
        rope_layout=rope.rope_layout if rope else "half",
        rope_scale=rope.rope_scale if rope else 1.0,
        norms_values=values[1],
        values_from_keys=values[2],
        v_dim=heads.v_dim,
    )
    name = sibling(qkv.name, "qkv_normed")
    normed = edits.declare(replace(qkv, name=name, shape=(qkv.shape[0], parts.q + parts.k + parts.v)))
    weights = {f"{role}_norm": op.inputs["weight"] for role, op in (("q", q), ("k", k)) if "weight" in op.inputs}
    inputs = {"qkv": qkv.name} | weights | others
    outputs = {"q": q.out, "k": k.out, "v": values[0]}
    return (
        Op(name, attrs, inputs, {"out": normed}, split.layer),
        replace(split, attrs=parts, inputs={"x": normed}, outputs=outputs),
    )


def _alone(graph: OpGraph, split: Op) -> bool:
    """Whether nothing else reads the projection, apart from the gate in its last columns."""
    name = split.inputs["x"]
    others = [op for op in graph.consumers(name) if op is not split]
    return name not in graph.outputs and all(isinstance(op.attrs, GateHeads) for op in others)


def _alike(q: Op, k: Op) -> bool:
    a, b = q.attrs_as(Norm), k.attrs_as(Norm)
    same_ports = all((port in q.inputs) == (port in k.inputs) for port in ("weight", "bias"))
    return (a.kind, a.eps) == (b.kind, b.eps) and same_ports


def _rotated_alike(site: AttentionSite) -> bool:
    return site.q.rotated_first and site.k.rotated_first and same_rotation(site.q.rope, site.k.rope)


def _takes_values(site: AttentionSite, scope: NormScope, q: Op) -> bool:
    """Whether qk_norm can make the values, too: as they are, or normalised by heads, without weights."""
    v, norm = site.v.norm, q.attrs_as(Norm)
    if v is None:
        return scope != "all" or not site.shares_source
    own, kv_heads = v.attrs_as(Norm), site.attention.attrs_as(Attention).num_kv_heads
    alike = (own.kind, own.eps, own.groups) == (norm.kind, norm.eps, kv_heads)
    return scope != "all" and alike and "weight" not in v.inputs


def _scope(graph: OpGraph, attention: Attention, q: Op, k: Op) -> NormScope | None:
    """The scope of both norms, or None if no scope of qk_norm describes them."""
    norms = ((q, attention.num_heads), (k, attention.num_kv_heads))

    def has(norm: Op, width: int) -> bool:
        """Whether its weight and bias, if it has any, are of this width."""
        return all(
            graph.value(norm.inputs[port]).shape == (width,) for port in ("weight", "bias") if port in norm.inputs
        )

    scopes: tuple[NormScope, ...] = get_args(NormScope)
    for scope in scopes:
        if all(
            norm.attrs_as(Norm).groups == (1 if scope == "all" else heads)
            and has(norm, attention.head_dim * (1 if scope == "head" else heads))
            for norm, heads in norms
        ):
            return scope
    return None

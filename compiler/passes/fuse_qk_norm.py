"""Makes the norms of queries and keys one op over the merged projection."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops import AttrValue
from mlxr.compiler.passes.base import Edits, PassResult, sibling, sole_producer


@dataclass(frozen=True)
class FuseQkNorm:
    """Fuses the norms between the merged projection and the attention.

    1. With q, k, v = split(qkv): norm(q), norm(k) that reach one attention and its cache write, perhaps through a rope
       and a temperature -> split(qk_norm(qkv)).

    Does not fire when q, k or qkv has another consumer, the norms differ in kind or eps, only one has a bias, or one is
    of other groups of columns than heads or all.
    """

    name: str = "fuse_qk_norm"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every layer."""
        edits = Edits(graph)
        writes = {op.attrs["layer"]: op for op in graph.ops if op.kind == "cache_write"}
        for attention in [op for op in graph.ops if op.kind == "attention"]:
            write = writes.get(attention.attrs["layer"])
            norms = [_norm_behind(graph, name) for name in (attention.inputs["q"], write.inputs["k"])] if write else []
            split = sole_producer(graph, norms[0].inputs["x"], "split") if norms and norms[0] else None
            if split is None or norms[1] is None or norms[0] is None or not graph.sole_consumer(split.inputs["x"]):
                continue
            q, k = norms[0], norms[1]
            reads = q.inputs["x"] == split.outputs["q"] and k.inputs["x"] == split.outputs["k"]
            scope = _scope(graph, attention, q, k)
            if reads and scope and graph.sole_consumer(k.inputs["x"]) and _alike(q, k):
                self._fuse(edits, attention, split, q, k, scope)
        return edits.result()

    def _fuse(self, edits: Edits, attention: Op, split: Op, q: Op, k: Op, scope: str) -> None:
        qkv = edits.graph.value(split.inputs["x"])
        inputs = {"qkv": qkv.name, "q_norm": q.inputs["weight"], "k_norm": k.inputs["weight"]}
        if "bias" in q.inputs:
            inputs |= {"q_norm_bias": q.inputs["bias"], "k_norm_bias": k.inputs["bias"]}
        attrs: dict[str, AttrValue] = {n: attention.attrs[n] for n in ("num_heads", "num_kv_heads", "head_dim")}
        attrs |= {"scope": scope, "kind": q.attrs["kind"], "eps": q.attrs["eps"]}
        name = sibling(qkv.name, "qkv_normed")
        normed = edits.declare(replace(qkv, name=name))
        outputs = {"q": q.out, "k": k.out, "v": split.outputs["v"]}
        edits.replace(
            split,
            Op(name, "qk_norm", inputs, {"out": normed}, attrs),
            replace(split, inputs={"x": normed}, outputs=outputs),
        )
        edits.replace(q)
        edits.replace(k)


def _norm_behind(graph: OpGraph, name: str) -> Op | None:
    """The norm that makes a value, looking through a temperature and a rope that nothing else reads."""
    op = graph.producer(name) if graph.sole_consumer(name) else None
    for kind in ("temperature", "rope"):
        if op and op.kind == kind:
            op = graph.producer(op.inputs["x"]) if graph.sole_consumer(op.inputs["x"]) else None
    return op if op and op.kind == "norm" and "residual" not in op.inputs else None


def _alike(q: Op, k: Op) -> bool:
    same = all(q.attrs[name] == k.attrs[name] for name in ("kind", "eps"))
    return same and ("bias" in q.inputs) == ("bias" in k.inputs)


def _scope(graph: OpGraph, attention: Op, q: Op, k: Op) -> str | None:
    """What both norms are over, or None where that is nothing a qk_norm can say."""
    head_dim = attention.attrs["head_dim"]
    counts = (attention.attrs["num_heads"], attention.attrs["num_kv_heads"])
    for scope in ("head", "heads", "all"):
        if all(
            norm.attrs["groups"] == (1 if scope == "all" else heads)
            and graph.value(norm.inputs["weight"]).shape == (head_dim * (1 if scope == "head" else heads),)  # type: ignore[operator]
            for norm, heads in zip((q, k), counts, strict=True)
        ):
            return scope
    return None

"""Makes RoPE, cache write and attention one op (decode) or two (prefill)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from mlxr.compiler.graph import Op, OpGraph
from mlxr.compiler.ops import AttrValue
from mlxr.compiler.passes.base import Edits, PassResult, sole_producer


@dataclass(frozen=True)
class _Match:
    """The ops of one layer between the merged projection and the attention's result."""

    split: Op
    rope_q: Op
    rope_k: Op
    write: Op
    attention: Op

    @property
    def ops(self) -> tuple[Op, ...]:
        return (self.split, self.rope_q, self.rope_k, self.write, self.attention)

    def attrs(self, *names: str) -> dict[str, AttrValue]:
        attrs = dict(self.rope_q.attrs) | dict(self.attention.attrs)
        return {n: attrs[n] for n in ("layer", "num_heads", "num_kv_heads", "head_dim", *names)}

    def inputs(self, *names: str) -> dict[str, str]:
        inputs = dict(self.rope_q.inputs) | dict(self.write.inputs) | dict(self.attention.inputs)
        inputs["qkv"] = self.split.inputs["x"]
        return {name: inputs[name] for name in ("qkv", "frequencies", *names, "k_arena", "v_arena")}


@dataclass(frozen=True)
class FuseAttention:
    """Fuses what lies between the merged q, k, v and the attention's result.

    With q, k, v = split(qkv), and q and k rotated at the same positions with the same frequencies:

    1. decode: cache_write(rope(k), v), attention(rope(q)) -> rope_write_attention(qkv).
    2. prefill: the same -> rope_cache_write(qkv), rope_attention(qkv).

    Does not fire when q, k or v has another consumer, the two ropes differ, or the attention comes before the write.
    """

    step: Literal["decode", "prefill"]

    @property
    def name(self) -> str:
        """The pass's name, with its option."""
        return f"fuse_attention[{self.step}]"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the step's rule to every layer."""
        edits = Edits(graph)
        for match in _matches(graph):
            for op in match.ops:
                edits.replace(op)
            fused = self._decode(match) if self.step == "decode" else self._prefill(edits, match)
            edits.replace(match.attention, *fused)
        return edits.result()

    def _decode(self, m: _Match) -> list[Op]:
        return [
            Op(
                m.attention.name,
                "rope_write_attention",
                m.inputs("positions", "slots", "context_lens", "block_tables"),
                {"out": m.attention.out},
                m.attrs("rotary_dim", "rope_layout", "scale", "window"),
            )
        ]

    def _prefill(self, edits: Edits, m: _Match) -> list[Op]:
        if "query_tiles" not in edits.graph and not any(v.name == "query_tiles" for v in edits.values):
            edits.declare(replace(edits.graph.value("positions"), name="query_tiles", shape=("tiles", 2)))
        attention = m.inputs("positions", "query_start", "context_lens", "block_tables")
        return [
            Op(
                m.write.name,
                "rope_cache_write",
                m.inputs("positions", "slots"),
                {},
                m.attrs("rotary_dim", "rope_layout"),
            ),
            Op(
                m.attention.name,
                "rope_attention",
                attention | {"query_tiles": "query_tiles"},
                {"out": m.attention.out},
                m.attrs("rotary_dim", "rope_layout", "scale", "window"),
            ),
        ]


def _matches(graph: OpGraph) -> Iterator[_Match]:
    writes = {op.attrs["layer"]: op for op in graph.ops if op.kind == "cache_write"}
    for attention in [op for op in graph.ops if op.kind == "attention"]:
        write = writes.get(attention.attrs["layer"])
        rope_q = sole_producer(graph, attention.inputs["q"], "rope")
        rope_k = sole_producer(graph, write.inputs["k"], "rope") if write else None
        split = sole_producer(graph, rope_q.inputs["x"], "split") if rope_q else None
        if write is None or rope_q is None or rope_k is None or split is None:
            continue
        ports = (rope_q.inputs["x"], rope_k.inputs["x"], write.inputs["v"])
        same_place = all(rope_q.inputs[p] == rope_k.inputs[p] for p in ("positions", "frequencies"))
        if (
            graph.index(write.name) < graph.index(attention.name)
            and ports == tuple(split.outputs[port] for port in "qkv")
            and all(graph.sole_consumer(name) for name in ports)
            and same_place
            and all(rope_q.attrs[a] == rope_k.attrs[a] for a in ("rotary_dim", "rope_layout"))
        ):
            yield _Match(split, rope_q, rope_k, write, attention)

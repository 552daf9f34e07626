"""Fuses RoPE and the attention of whole texts into one op."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.attention import Split
from mlxr.compiler.ir.ops.rope import Rope
from mlxr.compiler.ir.ops.text_attention import PackedTextAttention, TextAttention
from mlxr.compiler.passes.attention_walk import AttentionSite, attention_sites, same_rotation
from mlxr.compiler.passes.base import Edits, PassResult, sole_producer


@dataclass(frozen=True)
class FuseTextAttention:
    """Fuses the ops between the merged q, k, v and the result of attention within texts.

    1. With q, k, v = split(qkv), and q and k rotated at the same positions with the same frequencies, or not at all:
       text_attention(rope(q), rope(k), v) -> packed_text_attention(qkv).

    Does not fire when q, k or v has another consumer, or the two ropes differ, or only one of them exists.
    """

    name: str = "fuse_text_attention"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to every layer."""
        edits = Edits(graph)
        for site in attention_sites(graph):
            split = sole_producer(graph, site.q.source, Split)
            if isinstance(site.attention.attrs, TextAttention) and split is not None and _matches(graph, site, split):
                for op in (split, site.q.rope, site.k.rope):
                    if op is not None:
                        edits.replace(op)
                edits.replace(site.attention, _fused(edits, site, split))
        return edits.result()


def _matches(graph: OpGraph, site: AttentionSite, split: Op) -> bool:
    sources = (site.q.source, site.k.source, site.v.source)
    others = (site.q.norm, site.k.norm, site.v.norm, site.v.rope, site.q.temperature, site.k.temperature)
    return (
        not any(others)
        and same_rotation(site.q.rope, site.k.rope)
        and sources == tuple(split.outputs[port] for port in "qkv")
        and all(graph.sole_consumer(name) for name in sources)
    )


def _fused(edits: Edits, site: AttentionSite, split: Op) -> Op:
    attention, rope = site.attention.attrs_as(TextAttention), site.q.rope
    rotation = rope.attrs_as(Rope) if rope is not None else None
    attrs = PackedTextAttention(
        num_heads=attention.num_heads,
        num_kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        rotary_dim=rotation.rotary_dim if rotation else 0,
        rope_layout=rotation.rope_layout if rotation else "half",
        rope_scale=rotation.rope_scale if rotation else 1.0,
        scale=attention.scale,
        window=attention.window,
    )
    inputs = {"qkv": split.inputs["x"], "positions": "positions", "query_start": "query_start"}
    inputs |= {"query_tiles": edits.query_tiles()}
    inputs |= {"frequencies": rope.inputs["frequencies"]} if rope is not None else {}
    return replace(site.attention, attrs=attrs, inputs=inputs)

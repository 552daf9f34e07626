"""Fuses RoPE, cache write and attention into one op (decode) or two (prefill)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mlxr.compiler.artifact.program import PhaseName
from mlxr.compiler.formats.stores import KEYS_AND_VALUES
from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.op_kind import RopeLayout
from mlxr.compiler.ir.ops.attention import (
    Attention,
    GateHeads,
    PackedAttention,
    RopeAttention,
    RopeReadAttention,
    RopeWriteAttention,
    Split,
)
from mlxr.compiler.ir.ops.cache import RopeCacheWrite
from mlxr.compiler.ir.ops.rope import Rope, Temperature
from mlxr.compiler.passes.attention_walk import (
    AttentionSite,
    attention_sites,
    gate_of,
    reading_attentions,
    same_rotation,
)
from mlxr.compiler.passes.base import Edits, PassResult, sole_producer

_DECODE_BATCH = ("positions", "slots", "context_lens", "block_tables")
_READ_BATCH = ("positions", "context_lens", "block_tables")
_PREFILL_BATCH = ("positions", "query_start", "context_lens", "block_tables")
_WRITE_BATCH = ("positions", "slots")


@dataclass(frozen=True)
class _Match:
    """The ops of one layer between the merged projection and the attention's result.

    `qkv` is the projection. A layer that uses the keys and values of an earlier one has no split and no write, and
    `qkv` has queries alone.
    """

    qkv: str
    split: Op | None
    rope_q: Op | None
    rope_k: Op | None
    temperature: Op | None
    write: Op | None
    attention: Op
    gate: Op | None

    @property
    def ops(self) -> tuple[Op, ...]:
        ops = (self.split, self.rope_q, self.rope_k, self.temperature, self.write, self.attention, self.gate)
        return tuple(op for op in ops if op)

    @property
    def rotation(self) -> tuple[int, RopeLayout, float]:
        """Rotated elements of a head, layout and scale of the ropes."""
        if self.rope_q is None:
            return 0, "half", 1.0
        rope = self.rope_q.attrs_as(Rope)
        return rope.rotary_dim, rope.rope_layout, rope.rope_scale

    def fused_write(self) -> RopeCacheWrite:
        attention = self.attention.attrs_as(Attention)
        rotary_dim, rope_layout, rope_scale = self.rotation
        return RopeCacheWrite(
            num_heads=attention.num_heads,
            num_kv_heads=attention.num_kv_heads,
            head_dim=attention.head_dim,
            rotary_dim=rotary_dim,
            rope_layout=rope_layout,
            rope_scale=rope_scale,
            v_dim=attention.v_dim,
        )

    def fused_attention(self, kind: type[PackedAttention]) -> PackedAttention:
        attention = self.attention.attrs_as(Attention)
        rotary_dim, rope_layout, rope_scale = self.rotation
        temperature = self.temperature.attrs_as(Temperature) if self.temperature else None
        gate = self.gate.attrs_as(GateHeads) if self.gate else None
        return kind(
            num_heads=attention.num_heads,
            num_kv_heads=attention.num_kv_heads,
            head_dim=attention.head_dim,
            rotary_dim=rotary_dim,
            rope_layout=rope_layout,
            rope_scale=rope_scale,
            scale=attention.scale,
            window=attention.window,
            softcap=attention.softcap,
            temperature_beta=temperature.beta if temperature else None,
            temperature_context=temperature.original_context if temperature else None,
            temperature_first=temperature.first_position if temperature else 0,
            chunked=attention.chunked,
            gate=gate.kind if gate else None,
            gate_first=gate.first if gate else 0,
            gate_size=gate.size if gate else 0,
            v_dim=attention.v_dim,
            alibi=attention.alibi,
            alibi_heads=attention.alibi_heads,
            alibi_first=attention.alibi_first,
        )

    @property
    def outputs(self) -> dict[str, str]:
        return self.attention.outputs | ({} if self.gate is None else self.gate.outputs)

    def inputs(self, names: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, str]:
        rope = self.rope_q.inputs if self.rope_q else {}
        # All ops have the same positions; cache_write has none.
        write = self.write.inputs if self.write else {}
        inputs = {**rope, **write, **self.attention.inputs, "qkv": self.qkv}
        if self.gate is not None:
            inputs["gate"] = self.gate.inputs["gate"]
        bound = [name for name in ("frequencies", *optional) if name in inputs]
        return {name: inputs[name] for name in ("qkv", *bound, *names, *KEYS_AND_VALUES)}


@dataclass(frozen=True)
class FuseAttention:
    """Fuses the ops between the merged q, k, v and the attention's result.

    With q, k, v = split(qkv), and q and k rotated at the same positions with the same frequencies:

    1. decode: cache_write(rope(k), v), attention(temperature(rope(q))) -> rope_write_attention(qkv).
    2. prefill: the same -> rope_cache_write(qkv), rope_attention(qkv).

    3. decode, in a layer without a cache write: attention(temperature(rope(q))) -> rope_read_attention(q).
    4. prefill: the same -> rope_attention(q).

    The temperature, and both ropes, may be missing. A gate_heads after the attention becomes part of it.

    Does not fire when q, k or v has another consumer, the two ropes differ, only one of them exists, the attention,
    rope and temperature read different positions, the attention comes before the write, or there is no write and the
    queries are columns of a merged projection.
    """

    phase: PhaseName

    @property
    def name(self) -> str:
        """The pass's name, with its option."""
        return f"fuse_attention[{self.phase}]"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the phase's rule to every layer."""
        edits = Edits(graph)
        for match in _matches(graph):
            for op in match.ops:
                edits.replace(op)
            fused = self._decode(match) if self.phase == "decode" else self._prefill(edits, match)
            edits.replace(match.attention if match.gate is None else match.gate, *fused)
        return edits.result()

    def _decode(self, m: _Match) -> list[Op]:
        kind = RopeWriteAttention if m.write else RopeReadAttention
        inputs = m.inputs(_DECODE_BATCH if m.write else _READ_BATCH, optional=("sinks", "gate"))
        return [replace(m.attention, attrs=m.fused_attention(kind), inputs=inputs, outputs=m.outputs)]

    def _prefill(self, edits: Edits, m: _Match) -> list[Op]:
        inputs = m.inputs(_PREFILL_BATCH, optional=("sinks", "gate")) | {"query_tiles": edits.query_tiles()}
        write = [replace(m.write, attrs=m.fused_write(), inputs=m.inputs(_WRITE_BATCH))] if m.write else []
        attrs = m.fused_attention(RopeAttention)
        return [*write, replace(m.attention, attrs=attrs, inputs=inputs, outputs=m.outputs)]


def _matches(graph: OpGraph) -> Iterator[_Match]:
    for site in attention_sites(graph):
        split = sole_producer(graph, site.q.source, Split)
        sources = (site.q.source, site.k.source, site.v.source)
        if (
            split
            and _has_no_other_ops(site)
            and same_rotation(site.q.rope, site.k.rope)
            and graph.index(site.write.name) < graph.index(site.attention.name)
            and sources == tuple(split.outputs[port] for port in "qkv")
            and all(graph.sole_consumer(name) for name in sources)
            and _same_positions(site.attention, site.q.temperature, site.q.rope)
        ):
            qkv = split.inputs["x"]
            ropes = (site.q.rope, site.k.rope, site.q.temperature)
            yield _Match(qkv, split, *ropes, site.write, site.attention, site.gate)
    for attention, q in reading_attentions(graph):
        apart = not isinstance(source.attrs, Split) if (source := graph.producer(q.source)) else True
        if apart and _same_positions(attention, q.temperature, q.rope):
            first = q.rope or q.temperature
            name = first.inputs["x"] if first else attention.inputs["q"]
            yield _Match(name, None, q.rope, None, q.temperature, None, attention, gate_of(graph, attention))


def _has_no_other_ops(site: AttentionSite) -> bool:
    """Whether nothing but the ropes and the queries' temperature lies between the projection and the attention."""
    others = (site.q.norm, site.k.norm, site.k.temperature, site.v.norm, site.v.rope, site.v.temperature)
    return not any(others)


def _same_positions(attention: Op, *others: Op | None) -> bool:
    return all(op is None or op.inputs["positions"] == attention.inputs["positions"] for op in others)

"""Makes RoPE, cache write and attention one op (decode) or two (prefill)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops import AttrValue
from mlxr.compiler.passes.base import Edits, PassResult, sole_producer


@dataclass(frozen=True)
class _Match:
    """The ops of one layer between the merged projection and the attention's result."""

    split: Op
    rope_q: Op | None
    rope_k: Op | None
    temperature: Op | None
    write: Op
    attention: Op

    @property
    def ops(self) -> tuple[Op, ...]:
        found = (self.split, self.rope_q, self.rope_k, self.temperature, self.write, self.attention)
        return tuple(op for op in found if op)

    def attrs(self, *names: str) -> dict[str, AttrValue]:
        rotation = dict(self.rope_q.attrs) if self.rope_q else _NO_ROTATION
        heat = self.temperature.attrs if self.temperature else {"beta": None, "original_context": None}
        attrs = rotation | {"temperature_beta": heat["beta"], "temperature_context": heat["original_context"]}
        attrs |= self.attention.attrs
        return {n: attrs[n] for n in ("layer", "num_heads", "num_kv_heads", "head_dim", *_ROTATION, *names)}

    def inputs(self, *names: str, optional: tuple[str, ...] = ()) -> dict[str, str]:
        rotated = dict(self.rope_q.inputs) if self.rope_q else {}
        heated = dict(self.temperature.inputs) if self.temperature else {}
        # The positions of all are the same; cache_write has none.
        inputs = heated | rotated | dict(self.write.inputs) | dict(self.attention.inputs)
        inputs["qkv"] = self.split.inputs["x"]
        given = [name for name in ("frequencies", *optional) if name in inputs]
        return {name: inputs[name] for name in ("qkv", *given, *names, "k_arena", "v_arena")}


_ROTATION = ("rotary_dim", "rope_layout", "rope_scale")
_NO_ROTATION: dict[str, AttrValue] = {"rotary_dim": 0, "rope_layout": "half", "rope_scale": 1.0}
_SCORES = ("scale", "window", "softcap", "temperature_beta", "temperature_context")


@dataclass(frozen=True)
class FuseAttention:
    """Fuses what lies between the merged q, k, v and the attention's result.

    With q, k, v = split(qkv), and q and k rotated at the same positions with the same frequencies:

    1. decode: cache_write(rope(k), v), attention(temperature(rope(q))) -> rope_write_attention(qkv).
    2. prefill: the same -> rope_cache_write(qkv), rope_attention(qkv).

    The temperature, and both ropes, may be missing.

    Does not fire when q, k or v has another consumer, the two ropes differ or there is only one, the attention, rope
    and temperature read other positions, or the attention comes before the write.
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
                m.inputs("positions", "slots", "context_lens", "block_tables", optional=("sinks",)),
                {"out": m.attention.out},
                m.attrs(*_SCORES),
            )
        ]

    def _prefill(self, edits: Edits, m: _Match) -> list[Op]:
        if "query_tiles" not in edits.graph and not any(v.name == "query_tiles" for v in edits.values):
            edits.declare(replace(edits.graph.value("positions"), name="query_tiles", shape=("tiles", 2)))
        attention = m.inputs("positions", "query_start", "context_lens", "block_tables", optional=("sinks",))
        return [
            Op(m.write.name, "rope_cache_write", m.inputs("positions", "slots"), {}, m.attrs()),
            Op(
                m.attention.name,
                "rope_attention",
                attention | {"query_tiles": "query_tiles"},
                {"out": m.attention.out},
                m.attrs(*_SCORES),
            ),
        ]


def _matches(graph: OpGraph) -> Iterator[_Match]:
    writes = {op.attrs["layer"]: op for op in graph.ops if op.kind == "cache_write"}
    for attention in [op for op in graph.ops if op.kind == "attention"]:
        write = writes.get(attention.attrs["layer"])
        if write is None:
            continue
        q, k = attention.inputs["q"], write.inputs["k"]
        temperature = sole_producer(graph, q, "temperature")
        q = temperature.inputs["x"] if temperature else q
        ropes = [sole_producer(graph, name, "rope") for name in (q, k)]
        q, k = (rope.inputs["x"] if rope else name for rope, name in zip(ropes, (q, k), strict=True))
        split = sole_producer(graph, q, "split")
        ports = (q, k, write.inputs["v"])
        if (
            split
            and _same_rotation(ropes[0], ropes[1])
            and graph.index(write.name) < graph.index(attention.name)
            and ports == tuple(split.outputs[port] for port in "qkv")
            and all(graph.sole_consumer(name) for name in ports)
            and _same_positions(attention, temperature, ropes[0])
        ):
            yield _Match(split, ropes[0], ropes[1], temperature, write, attention)


def _same_rotation(q: Op | None, k: Op | None) -> bool:
    if q is None or k is None:
        return q is k
    same_place = all(q.inputs[port] == k.inputs[port] for port in ("positions", "frequencies"))
    return same_place and all(q.attrs[name] == k.attrs[name] for name in _ROTATION)


def _same_positions(attention: Op, *others: Op | None) -> bool:
    return all(op is None or op.inputs["positions"] == attention.inputs["positions"] for op in others)

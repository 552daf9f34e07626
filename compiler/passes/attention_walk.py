"""Walks from an attention back to the projections of its queries, keys and values."""

from collections.abc import Iterator
from dataclasses import dataclass

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.op_kind import OpKind
from mlxr.compiler.ir.ops.attention import Attention, GateHeads
from mlxr.compiler.ir.ops.cache import CacheWrite
from mlxr.compiler.ir.ops.norm import Norm
from mlxr.compiler.ir.ops.rope import Rope, Temperature
from mlxr.compiler.ir.ops.shared_norm import MeanSquares, NormOfPart
from mlxr.compiler.ir.ops.text_attention import TextAttention
from mlxr.compiler.passes.base import sole_producer


@dataclass(frozen=True)
class Path:
    """The ops between a projection and an attention. Nothing else reads their results.

    On a rank that has some of the heads that are normalised together, a `MeanSquares` also reads the source.

    Attributes:
        temperature, rope, norm: the ops, in order from the attention back; None for a missing op.
        rotated_first: whether the rope is before the norm, and not behind it.
        source: the value that the first op of the path reads; on an empty path, the value that the attention reads.
    """

    temperature: Op | None
    rope: Op | None
    norm: Op | None
    source: str
    rotated_first: bool = False


@dataclass(frozen=True)
class AttentionSite:
    """An attention, the cache write of its layer, and the paths that lead to them.

    Attributes:
        attention: the attention, which reads the queries.
        write: the cache write, which reads the keys and values; attention within texts reads them itself.
        q, k, v: the paths of queries, keys and values.
        gate: the op that multiplies the attention's result, which nothing else reads, by a gate; None for none.
    """

    attention: Op
    write: Op
    q: Path
    k: Path
    v: Path
    gate: Op | None = None

    @property
    def shares_source(self) -> bool:
        """Whether keys and values are made of one projection."""
        return self.k.source == self.v.source


def attention_sites(graph: OpGraph) -> Iterator[AttentionSite]:
    """Every attention whose layer has a cache write, or that is within texts, in program order."""
    writes = {op.layer: op for op, _ in (*graph.ops_of(CacheWrite), *graph.ops_of(TextAttention))}
    for attention, _ in graph.ops_of(Attention):
        write = writes.get(attention.layer)
        if write is not None:
            q, k, v = attention.inputs["q"], write.inputs["k"], write.inputs["v"]
            yield AttentionSite(
                attention, write, _path(graph, q), _path(graph, k), _path(graph, v), gate_of(graph, attention)
            )


def gate_of(graph: OpGraph, attention: Op) -> Op | None:
    """The op that multiplies an attention's result by a gate, if nothing else reads that."""
    op = graph.sole_consumer(attention.outputs["out"])
    return op if op is not None and isinstance(op.attrs, GateHeads) else None


def reading_attentions(graph: OpGraph) -> Iterator[tuple[Op, Path]]:
    """Every attention whose layer has no cache write, with the path of its queries: it reads another layer's keys."""
    writers = {op.layer for op, _ in (*graph.ops_of(CacheWrite), *graph.ops_of(TextAttention))}
    for attention, _ in graph.ops_of(Attention):
        if attention.layer not in writers:
            yield attention, _path(graph, attention.inputs["q"])


def source_of(graph: OpGraph, path: Path, *kinds: type[OpKind], readers: int = 1) -> Op | None:
    """The op that writes a path's source, if it is of these kinds, and only the path and its mean squares read that.

    With 2 `readers`, the path of the values reads it, too.
    """
    op = graph.producer(path.source)
    reading = [reader for reader in graph.consumers(path.source) if not isinstance(reader.attrs, MeanSquares)]
    alone = len(reading) == readers and path.source not in graph.outputs
    return op if op and isinstance(op.attrs, kinds) and alone else None


def same_rotation(q: Op | None, k: Op | None) -> bool:
    """Whether both ropes, or none, rotate at the same positions with the same frequencies."""
    if q is None or k is None:
        return q is k
    a, b = q.attrs_as(Rope), k.attrs_as(Rope)
    same_place = all(q.inputs[port] == k.inputs[port] for port in ("positions", "frequencies"))
    return same_place and (a.rotary_dim, a.rope_layout, a.rope_scale) == (b.rotary_dim, b.rope_layout, b.rope_scale)


def _path(graph: OpGraph, name: str) -> Path:
    steps: list[Op | None] = []
    for kinds in ((Temperature,), (Rope,), (Norm, NormOfPart), (Rope,)):
        op = sole_producer(graph, name, *kinds)
        if op is not None and ("residual" in op.inputs or (len(steps) == 3 and steps[1] is not None)):
            op = None
        steps.append(op)
        name = op.inputs["x"] if op is not None else name
    temperature, rope, norm, first = steps
    return Path(temperature, rope or first, norm, name, rotated_first=norm is not None and first is not None)

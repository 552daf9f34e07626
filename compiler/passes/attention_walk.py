"""Walks from an attention back to the projections of its queries, keys and values."""

from collections.abc import Iterator
from dataclasses import dataclass

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.attention import Attention
from mlxr.compiler.ir.ops.cache import CacheWrite
from mlxr.compiler.ir.ops.norm import Norm
from mlxr.compiler.ir.ops.rope import Rope, Temperature
from mlxr.compiler.passes.base import sole_producer


@dataclass(frozen=True)
class Path:
    """The ops between a projection and an attention. Nothing else reads their results.

    Attributes:
        temperature, rope, norm: the ops, in order from the attention back; None for a missing op.
        source: the value that the first op of the path reads; on an empty path, the value that the attention reads.
    """

    temperature: Op | None
    rope: Op | None
    norm: Op | None
    source: str


@dataclass(frozen=True)
class AttentionSite:
    """An attention, the cache write of its layer, and the paths that lead to them.

    Attributes:
        attention: the attention, which reads the queries.
        write: the cache write, which reads the keys and values.
        q, k, v: the paths of queries, keys and values.
    """

    attention: Op
    write: Op
    q: Path
    k: Path
    v: Path


def attention_sites(graph: OpGraph) -> Iterator[AttentionSite]:
    """Every attention whose layer has a cache write, in program order."""
    writes = {op.layer: op for op, _ in graph.ops_of(CacheWrite)}
    for attention, _ in graph.ops_of(Attention):
        write = writes.get(attention.layer)
        if write is not None:
            q, k, v = attention.inputs["q"], write.inputs["k"], write.inputs["v"]
            yield AttentionSite(attention, write, _path(graph, q), _path(graph, k), _path(graph, v))


def _path(graph: OpGraph, name: str) -> Path:
    steps: list[Op | None] = []
    for kind in (Temperature, Rope, Norm):
        op = sole_producer(graph, name, kind)
        if op is not None and "residual" in op.inputs:
            op = None
        steps.append(op)
        name = op.inputs["x"] if op is not None else name
    temperature, rope, norm = steps
    return Path(temperature, rope, norm, name)

"""Graphs with the layers that are alike reduced to one representative, as the picture shows them."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mlxr.compiler.artifact import DType, Op, OpGraph, Value
from mlxr.compiler.ir.tensor import layer_prefix
from mlxr.inspect.layers import alike, is_in_layer, without_layer


@dataclass(frozen=True)
class Edge:
    """A value read at an op's port, or returned (`target` is None); `source` is None for a value that no op makes."""

    value: str
    source: str | None
    target: str | None
    port: str


@dataclass(frozen=True)
class Section:
    """Ops drawn together: those of a representative layer (`layers` are all that it stands for), or of no layer."""

    layers: tuple[int, ...]
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class Folded:
    """A graph for the picture.

    Attributes:
        dtype: type of most values.
        sections: ops before the layers, each representative layer, ops after the layers.
        links: values between ops; `tokens`: the chain that orders arena accesses.
        order: (writer, reader) of the arena, where no token orders them yet.
    """

    graph: OpGraph
    dtype: DType
    sections: tuple[Section, ...]
    links: tuple[Edge, ...]
    tokens: tuple[Edge, ...]
    order: tuple[tuple[str, str], ...]

    @property
    def ops(self) -> tuple[Op, ...]:
        """All ops shown, in program order within their sections."""
        return tuple(op for section in self.sections for op in section.ops)

    def value(self, name: str) -> Value:
        """A value by name."""
        return self.graph.value(name)


def arena_access(op: Op) -> str:
    """How an op touches the arena: none, read, write or readwrite."""
    return op.attrs.access or "none"


def layer_groups(graphs: Sequence[OpGraph]) -> list[tuple[int, ...]]:
    """Layers that are alike in every one of the graphs."""
    parts: dict[int, list[Hashable]] = {}
    for graph in graphs:
        for layer, signature in _signatures(graph).items():
            parts.setdefault(layer, []).append(signature)
    return alike({layer: tuple(signatures) for layer, signatures in parts.items()})


def _signatures(graph: OpGraph) -> dict[int, Hashable]:
    signatures: dict[int, list[Hashable]] = {}
    for op in graph.ops:
        layer = op.layer
        if layer is None:
            continue
        inputs = tuple((port, _relative(graph, name, layer)) for port, name in op.inputs.items())
        outputs = tuple((port, without_layer(name, layer)) for port, name in op.outputs.items())
        signatures.setdefault(layer, []).append((without_layer(op.name, layer), op.attrs, inputs, outputs))
    return {layer: tuple(ops) for layer, ops in signatures.items()}


def _relative(graph: OpGraph, name: str, layer: int) -> Hashable:
    value = graph.value(name)
    if is_in_layer(name, layer):
        return (without_layer(name, layer), value.shape, value.dtype)
    if value.role in ("activation", "token"):
        return ("earlier", value.shape, value.dtype)
    return (name, value.shape, value.dtype)


def fold(graph: OpGraph, groups: Sequence[tuple[int, ...]], dtype: DType) -> Folded:
    """The graph with one layer of each group kept; `dtype` is the type of most values."""
    representative = {layer: group[0] for group in groups for layer in group}
    kept: dict[int, list[Op]] = {group[0]: [] for group in groups}
    before: list[Op] = []
    after: list[Op] = []
    seen_layer = False
    for op in graph.ops:
        if op.layer is not None:
            seen_layer = True
            if op.layer in kept:
                kept[op.layer].append(op)
        else:
            (after if seen_layer else before).append(op)
    sections = [Section((), tuple(before))]
    sections += [Section(group, tuple(kept[group[0]])) for group in groups]
    sections.append(Section((), tuple(after)))
    sections = [section for section in sections if section.ops]

    def folded(name: str) -> str:
        producer = graph.producer(name)
        if producer is None or producer.layer is None:
            return name
        return layer_prefix(representative[producer.layer]) + without_layer(name, producer.layer)

    ops = [op for section in sections for op in section.ops]
    links: dict[Edge, None] = {}
    tokens: dict[Edge, None] = {}
    reads = [(op.name, port, name) for op in ops for port, name in op.inputs.items()]
    for target, port, read in [*reads, *((None, "", name) for name in graph.outputs)]:
        name = folded(read)
        value, producer = graph.value(name), graph.producer(name)
        link = Edge(name, producer.name if producer else None, target, port)
        if value.role == "token":
            tokens[link] = None
        elif producer or value.role == "input":
            links[link] = None
    return Folded(graph, dtype, tuple(sections), tuple(links), tuple(tokens), tuple(_arena_order(sections)))


def _arena_order(sections: Sequence[Section]) -> list[tuple[str, str]]:
    """Within a layer, each access follows the one before it."""
    pairs: list[tuple[str, str]] = []
    for section in sections:
        accesses = [op.name for op in section.ops if arena_access(op) != "none"]
        pairs += pairwise(accesses)
    return pairs

"""Ops of a graph that were added, removed or changed; layers in which the same happened are reported together."""

from collections.abc import Iterator, Mapping

from mlxr.compiler.artifact import Op, OpGraph
from mlxr.compiler.spec.record import Record
from mlxr.diff.field_changes import Change, FieldChange, field_changes
from mlxr.diff.pair_ops import facts, pair_ops, sections
from mlxr.inspect.layers import without_layer


class OpChange(Record):
    """An op that differs, in one layer or in several.

    Attributes:
        op: its name in A, or in B if it was added; without its layer.
        kind: its kind.
        layers: the layers in which it differs in this way; empty for an op outside the layers.
        fields: what differs: attributes, `input PORT` and `output PORT` (shapes, types, tensors), and `input PORT
            from`: which op makes what it reads.
    """

    change: Change
    op: str
    kind: str
    layers: tuple[int, ...] = ()
    fields: tuple[FieldChange, ...] = ()


class GraphDiff(Record):
    """The differences of a graph.

    Attributes:
        graph: `source` (as built), `decode` or `prefill` (after fusion).
        ops_a, ops_b: numbers of ops.
        changes: the ops that differ.
    """

    graph: str
    ops_a: int
    ops_b: int
    changes: tuple[OpChange, ...]


def graph_diff(name: str, a: OpGraph, b: OpGraph) -> GraphDiff:
    """Compares two graphs by their structure.

    Args:
        name: what the graphs are called.
        a: the first graph.
        b: the second graph.
    """
    layers: dict[str, list[int]] = {}
    for layer, change in _changes(a, b):
        layers.setdefault(change.model_dump_json(), []).extend([] if layer is None else [layer])
    changes = [
        OpChange.model_validate_json(text).model_copy(update={"layers": tuple(of)}) for text, of in layers.items()
    ]
    return GraphDiff(graph=name, ops_a=len(a), ops_b=len(b), changes=tuple(changes))


def _changes(a: OpGraph, b: OpGraph) -> Iterator[tuple[int | None, OpChange]]:
    """Each op that differs, with its layer, in A's order; ops that were added follow those of their layer."""
    names = pair_ops(a, b)
    added = {op.name for op in b.ops} - set(names.values())
    of_a, of_b = sections(a), sections(b)
    for section in {**{key: None for key in of_a if key != "after"}, **dict.fromkeys(of_b), "after": None}:
        for op in of_a.get(section, []):
            if op.name not in names:
                yield op.layer, _whole(op, "removed")
                continue
            other = b.op(names[op.name])
            if fields := (*field_changes(facts(a, op), facts(b, other)), *_wiring(a, op, b, other, names)):
                about = without_layer(op.name, op.layer)
                yield op.layer, OpChange(change="changed", op=about, kind=op.kind, fields=fields)
        for op in of_b.get(section, []):
            if op.name in added:
                yield op.layer, _whole(op, "added")
    returned = [[_source(graph, name, None) for name in graph.outputs] for graph in (a, b)]
    makers = [[graph.producer(name) for name in graph.outputs] for graph in (a, b)]
    partners = [maker and names.get(maker.name) for maker in makers[0]]
    if returned[0] != returned[1] and partners != [maker and maker.name for maker in makers[1]]:
        field = FieldChange(path="returns", change="changed", a=returned[0], b=returned[1])
        yield None, OpChange(change="changed", op="the graph", kind="result of", fields=(field,))


def _whole(op: Op, change: Change) -> OpChange:
    return OpChange(change=change, op=without_layer(op.name, op.layer), kind=op.kind)


def _wiring(a: OpGraph, op: Op, b: OpGraph, other: Op, names: Mapping[str, str]) -> Iterator[FieldChange]:
    """The ports that read what another op makes."""
    for port, name in op.inputs.items():
        if port not in other.inputs:
            continue
        ours, theirs = a.producer(name), b.producer(other.inputs[port])
        if (ours and names.get(ours.name)) == (theirs and theirs.name):
            continue
        told = _source(a, name, op.layer), _source(b, other.inputs[port], op.layer)
        if told[0] != told[1]:
            yield FieldChange(path=f"input {port} from", change="changed", a=told[0], b=told[1])


def _source(graph: OpGraph, name: str, layer: int | None) -> str | None:
    """The op that makes a value, as an op of a layer (or of none) sees it; None if no op makes it."""
    maker = graph.producer(name)
    if maker is None:
        return None
    if maker.layer is None or maker.layer == layer:
        return f"{maker.kind} {without_layer(maker.name, layer)}"
    place = f"layer {maker.layer}"
    if layer is not None and maker.layer == layer - 1:
        place = "the layer before"
    elif maker.layer == max(op.layer for op in graph.ops if op.layer is not None):
        place = "the last layer"
    return f"{maker.kind} {without_layer(maker.name, maker.layer)} of {place}"

"""The op graphs of an artifact, placed: the page draws boxes, lines and labels where they are said to be.

Layers that are alike are drawn once, in a frame that says how many they are. Ids of nodes are names of ops, those of a
frame's first layer. All coordinates are pixels from the top left of one picture that has the three graphs side by side.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal, cast

from mlxr.compiler.artifact import Artifact, Op, OpGraph
from mlxr.compiler.ir.op_kind import AttrValue, OpFamily
from mlxr.compiler.spec.record import Record
from mlxr.inspect.layers import without_layer
from mlxr.inspect.picture.column import PILL_HEIGHT, GraphColumn
from mlxr.inspect.picture.draw import ABOUT, TITLE_HEIGHT, Band, DrawnBox, draw_column, place_columns
from mlxr.inspect.picture.folded import Folded
from mlxr.inspect.picture.lines import Line
from mlxr.inspect.picture.origins import origins

GraphName = Literal["source", "decode", "prefill"]


class PortView(Record):
    """A value at a port of an op.

    Attributes:
        port: the port's name.
        value: the value's name.
        role: what it is: input, constant, weight, arena, token, activation.
        shape: numbers, and names of a batch's dims.
        node: the op that makes an input, if it is drawn.
        tensors: the tensors that a weight consists of.
    """

    port: str
    value: str
    role: str
    shape: tuple[int | str, ...]
    dtype: str
    node: str | None = None
    tensors: tuple[str, ...] = ()


class PartView(Record):
    """An op of the source graph that a fused op computes."""

    id: str
    kind: str
    family: OpFamily


class TextView(Record):
    """A line of text; `x` is its middle, `y` its baseline; `style` is `op` or `note`."""

    x: float
    y: float
    text: str
    style: str


class BadgeView(Record):
    """A small box inside a fused op's box: ops that it replaced."""

    x: float
    y: float
    width: float
    text: str
    family: str


class NodeView(Record):
    """An op and its box.

    Attributes:
        id: the op's name.
        label: the name without its layer.
        kind, summary: what it computes.
        family: how the picture colours it.
        layer: its layer; of layers that are alike, the first.
        attributes: of its kind.
        parts: the source ops that it computes; empty in the source graph.
        fused_into: in the source graph, the op of each fused graph that computes it.
        arena: how it uses the KV arena: none, read, write, readwrite.
    """

    id: str
    label: str
    kind: str
    summary: str
    family: OpFamily
    layer: int | None
    attributes: Mapping[str, AttrValue]
    inputs: tuple[PortView, ...]
    outputs: tuple[PortView, ...]
    parts: tuple[PartView, ...]
    fused_into: Mapping[str, str]
    arena: str
    x: float
    y: float
    width: float
    height: float
    texts: tuple[TextView, ...]
    chips: tuple[BadgeView, ...]


class EdgeView(Record):
    """A line between boxes, as an SVG path.

    Attributes:
        kind: `value`, `arena` (an access), or `token` (the order of accesses).
        arrows: none, end or both.
        value: the value that flows; null for the arena.
        source, target: the ops; null where a value comes from outside or is returned.
    """

    path: str
    kind: Literal["value", "arena", "token"]
    arrows: Literal["none", "end", "both"]
    value: str | None
    source: str | None
    target: str | None


class LabelView(Record):
    """A label on a line; `x` is its middle, `y` its top; `terminal`: the value comes from outside or is returned."""

    x: float
    y: float
    width: float
    text: str
    kind: str
    terminal: bool


class BoxView(Record):
    """A rectangle: the KV arena, or what lies behind the source ops of one fused op (`family` is that op's)."""

    x: float
    y: float
    width: float
    height: float
    family: str | None = None


class FrameView(Record):
    """The frame around a layer that stands for all `layers`."""

    x: float
    y: float
    width: float
    height: float
    label: str
    layers: tuple[int, ...]


class GraphView(Record):
    """One graph.

    Attributes:
        name: `source` (as built), `decode` or `prefill` (after fusion).
        title, about, counts: for people.
        num_ops: its ops, all layers counted.
        x, width: its part of the picture.
        dtype: the type of values whose label names none.
    """

    name: GraphName
    title: str
    about: str
    counts: str
    num_ops: int
    x: float
    width: float
    dtype: str
    nodes: tuple[NodeView, ...]
    edges: tuple[EdgeView, ...]
    labels: tuple[LabelView, ...]
    frames: tuple[FrameView, ...]
    arenas: tuple[BoxView, ...]
    bands: tuple[BoxView, ...]


class GraphsView(Record):
    """The graphs of an artifact, side by side in a picture of this size; `top` is where their columns begin."""

    name: str
    digest: str
    top: float
    width: float
    height: float
    graphs: tuple[GraphView, ...]


def graphs_view(artifact: Artifact) -> GraphsView:
    """The op graphs before and after fusion, with their layout."""
    columns, bands = place_columns(artifact)
    folded = [column.graph for column in columns]
    parts = {name: origins(folded[0], graph) for name, graph in zip(ABOUT, folded, strict=True) if name != "source"}
    views = [
        _graph(artifact, cast("GraphName", name), column, parts, bands if name == "source" else [])
        for name, column in zip(ABOUT, columns, strict=True)
    ]
    right = max(view.x + view.width for view in views)
    bottom = max(
        *(column.bottoms[-1] for column in columns), *(label.y + PILL_HEIGHT for v in views for label in v.labels)
    )
    return GraphsView(
        name=artifact.spec.name,
        digest=artifact.digest,
        top=TITLE_HEIGHT,
        width=_pixels(right + columns[0].x),
        height=_pixels(bottom + columns[0].x),
        graphs=tuple(views),
    )


def _graph(
    artifact: Artifact,
    name: GraphName,
    column: GraphColumn,
    parts: Mapping[str, Mapping[str, tuple[Op, ...]]],
    bands: list[Band],
) -> GraphView:
    graph, drawn = column.graph, draw_column(artifact, name, column, bands)
    sections = [section for section in graph.sections if section.layers]
    fused_into: dict[str, dict[str, str]] = {}
    if name == "source":
        for phase, of_phase in parts.items():
            for fused, replaced in of_phase.items():
                for op in replaced:
                    fused_into.setdefault(op.name, {})[phase] = fused
    return GraphView(
        name=name,
        title=drawn.title,
        about=drawn.about,
        counts=drawn.counts,
        num_ops=len(graph.graph),
        x=_pixels(drawn.x),
        width=_pixels(drawn.width),
        dtype=str(graph.dtype),
        nodes=tuple(
            _node(graph, op, box, parts.get(name, {}).get(op, ()), fused_into.get(op, {}))
            for op, box in zip(column.boxes, drawn.boxes, strict=True)
        ),
        edges=tuple(map(_edge, drawn.lines)),
        labels=tuple(LabelView(**_rounded(asdict(pill))) for pill in drawn.pills),
        frames=tuple(
            FrameView(**_rounded(asdict(frame)), layers=section.layers)
            for frame, section in zip(drawn.frames, sections, strict=True)
        ),
        arenas=tuple(BoxView(**_rounded(asdict(arena))) for arena in drawn.arenas),
        bands=tuple(BoxView(**_rounded(asdict(band))) for band in drawn.bands),
    )


def _node(graph: Folded, name: str, box: DrawnBox, parts: tuple[Op, ...], fused_into: Mapping[str, str]) -> NodeView:
    op = graph.graph.op(name)
    makers = {link.port: link.source for link in (*graph.links, *graph.tokens) if link.target == name}
    return NodeView(
        id=name,
        label=without_layer(name, op.layer),
        kind=op.kind,
        summary=op.attrs.summary,
        family=op.attrs.family,
        layer=op.layer,
        attributes=op.attrs.attributes,
        inputs=ports(graph.graph, op.inputs, makers),
        outputs=ports(graph.graph, op.outputs),
        parts=tuple(PartView(id=part.name, kind=part.kind, family=part.attrs.family) for part in parts),
        fused_into=fused_into,
        arena=op.attrs.access or "none",
        x=_pixels(box.x),
        y=_pixels(box.y),
        width=_pixels(box.width),
        height=_pixels(box.height),
        texts=tuple(TextView(**_rounded(asdict(text))) for text in box.texts),
        chips=tuple(BadgeView(**_rounded(asdict(chip))) for chip in box.chips),
    )


def ports(
    graph: OpGraph, names: Mapping[str, str], makers: Mapping[str, str | None] | None = None
) -> tuple[PortView, ...]:
    """The values at some ports.

    Args:
        graph: whose values.
        names: their names by port.
        makers: the drawn op that makes each; None: not told.
    """
    views = []
    for port, name in names.items():
        value = graph.value(name)
        views.append(
            PortView(
                port=port,
                value=name,
                role=value.role,
                shape=value.shape,
                dtype=str(value.dtype),
                node=(makers or {}).get(port),
                tensors=value.parts if value.role == "weight" else (),
            )
        )
    return tuple(views)


def _edge(line: Line) -> EdgeView:
    link = line.link
    return EdgeView(
        path=line.path,
        kind=line.kind,
        arrows=line.arrows,
        value=None if link is None else link.value,
        source=None if link is None else link.source,
        target=None if link is None else link.target,
    )


def _pixels(number: float) -> float:
    return round(number, 1)


def _rounded(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: _pixels(value) if isinstance(value, float) else value for name, value in fields.items()}

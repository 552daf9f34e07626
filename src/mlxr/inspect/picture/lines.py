"""The lines of one graph: values, arena accesses and tokens, as paths with rounded right angles."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mlxr.inspect.picture.column import (
    ARENA_GAP,
    ARENA_WIDTH,
    BEND,
    LANE_WIDTH,
    PAD,
    PILL_HEIGHT,
    PILL_TOP,
    Box,
    GraphColumn,
)
from mlxr.inspect.picture.content import dims, label_of, label_width
from mlxr.inspect.picture.folded import Edge, arena_access

RADIUS = 5.0
ARENA_HEIGHT = 34.0
TOKEN_INSET = 11.0

Point = tuple[float, float]
Kind = Literal["value", "arena", "token"]


@dataclass(frozen=True)
class Line:
    """A path, with an arrow at its end or at both ends, or none; `link` is what it shows, if that is not an arena."""

    path: str
    kind: Kind
    arrows: Literal["none", "end", "both"] = "end"
    link: Edge | None = None


@dataclass(frozen=True)
class Pill:
    """A label on a line; `x` is its middle, `y` its top."""

    x: float
    y: float
    width: float
    text: str
    kind: Kind
    terminal: bool = False


@dataclass(frozen=True)
class ArenaBox:
    """The KV arena beside the ops that access it."""

    x: float
    y: float
    width: float
    height: float


def path_of(points: Sequence[Point]) -> str:
    """An SVG path along points, its corners rounded."""
    kept = [points[0]]
    for before, point, after in zip(points, points[1:], points[2:], strict=False):
        straight = before[0] == point[0] == after[0] or before[1] == point[1] == after[1]
        if not straight and point != kept[-1]:
            kept.append(point)
    kept.append(points[-1])
    parts = [f"M{_xy(kept[0])}"]
    for before, corner, after in zip(kept, kept[1:], kept[2:], strict=False):
        radius = min(RADIUS, _length(before, corner) / 2, _length(corner, after) / 2)
        start, end = _toward(corner, before, radius), _toward(corner, after, radius)
        parts.append(f"L{_xy(start)}Q{_xy(corner)} {_xy(end)}")
    return "".join([*parts, f"L{_xy(kept[-1])}"])


def _xy(point: Point) -> str:
    return f"{point[0]:.1f} {point[1]:.1f}"


def _length(a: Point, b: Point) -> float:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def _toward(start: Point, end: Point, distance: float) -> Point:
    length = _length(start, end) or 1.0
    return (start[0] + (end[0] - start[0]) / length * distance, start[1] + (end[1] - start[1]) / length * distance)


def value_lines(column: GraphColumn) -> tuple[list[Line], list[Pill]]:
    """Values between ops with their shapes, the input that feeds the first op, and what the graph returns."""
    graph, boxes = column.graph, column.boxes
    lines: list[Line] = []
    pills: dict[str, Pill] = {}
    for link in graph.links:
        value = graph.value(link.value)
        text = label_of(graph, value)
        if link.source is not None:
            box = boxes[link.source]
            if link.target is None:
                lines.append(
                    Line(
                        path_of([(_exit(column, link), box.bottom), (_exit(column, link), box.bottom + PILL_TOP)]),
                        "value",
                        "none",
                        link,
                    )
                )
                text = f"{value.name}: {text}"
            else:
                lines.append(Line(path_of(_route(column, link)), "value", link=link))
            if link.value not in pills or link.target is None:
                pills[link.value] = _pill(
                    _exit(column, link), box.bottom + PILL_TOP, text, "value", link.target is None
                )
        elif link.target is not None and _is_first(column, link):
            box = boxes[link.target]
            name = f"{value.name}: {dims(value)}"
            top = box.y - BEND - PILL_HEIGHT - 3
            lines.append(Line(path_of([(box.centre, top), (box.centre, box.y)]), "value", link=link))
            pills[link.value] = _pill(box.centre, top, name, "value", True)
    return lines, list(pills.values())


def _pill(x: float, y: float, text: str, kind: Kind, terminal: bool) -> Pill:
    return Pill(x, y, label_width(text), text, kind, terminal)


def _is_first(column: GraphColumn, link: Edge) -> bool:
    """Whether an input is the only one that its op computes with; the others are metadata and not drawn."""
    return not any(other.target == link.target and other.source for other in column.graph.links)


def _exit(column: GraphColumn, link: Edge) -> float:
    assert link.source is not None, "an input leaves no box"
    box = column.boxes[link.source]
    values = list(dict.fromkeys(other.value for other in column.graph.links if other.source == link.source))
    return _port(box, values.index(link.value), len(values))


def _entry(column: GraphColumn, link: Edge) -> float:
    """Where a link enters its op from above; links are in the order of where their lines come from."""
    assert link.target is not None, "a returned value enters no box"
    into = [
        other
        for other in column.graph.links
        if other.target == link.target and other.source and other not in column.rows.lanes
    ]
    into.sort(key=lambda other: _last_x(column, other))
    return _port(column.boxes[link.target], into.index(link), len(into))


def _last_x(column: GraphColumn, link: Edge) -> float:
    assert link.target is not None, "a returned value enters no box"
    number = column.rows.row_of[link.target] - 1
    passing = column.rows.pass_x.get((link, number))
    return _exit(column, link) if passing is None else column.centre + passing


def _port(box: Box, index: int, number: int) -> float:
    return box.centre + (index - (number - 1) / 2) * min(28.0, box.width / (number + 1))


def _route(column: GraphColumn, link: Edge) -> list[Point]:
    assert link.source is not None and link.target is not None, "only links between ops are routed"
    rows, start, end = column.rows, column.boxes[link.source], column.boxes[link.target]
    x = _exit(column, link)
    points: list[Point] = [(x, start.bottom)]
    first = rows.row_of[link.source] + 1
    if link in rows.lanes:
        lane = column.x + column.width - PAD - rows.lanes[link] * LANE_WIDTH
        bend = column.tops[first] - BEND
        return [*points, (x, bend), (lane, bend), (lane, end.middle), (end.right, end.middle)]
    for number in range(first, rows.row_of[link.target] + 1):
        at = rows.pass_x.get((link, number))
        following = _entry(column, link) if at is None else column.centre + at
        bend = column.tops[number] - BEND
        points += [(x, bend), (following, bend)]
        x = following
    return [*points, (x, end.y)]


def arena_lines(column: GraphColumn) -> tuple[list[Line], list[ArenaBox]]:
    """The arena of each section and the accesses to it: arrows point where the data goes."""
    lines: list[Line] = []
    arenas: list[ArenaBox] = []
    for section in column.graph.sections:
        boxes = [column.boxes[op.name] for op in section.ops if arena_access(op) != "none"]
        if not boxes:
            continue
        left = column.inner_right + ARENA_GAP
        middle = sum(box.middle for box in boxes) / len(boxes)
        arena = ArenaBox(left, middle - ARENA_HEIGHT / 2, ARENA_WIDTH, ARENA_HEIGHT)
        arenas.append(arena)
        centre = left + ARENA_WIDTH / 2
        for box in boxes:
            if abs(box.middle - middle) < ARENA_HEIGHT / 2:
                points = [(box.right, box.middle), (left, box.middle)]
            else:
                edge = arena.y if box.middle < middle else arena.y + ARENA_HEIGHT
                points = [(box.right, box.middle), (centre, box.middle), (centre, edge)]
            access = arena_access(box.op)
            ends = points[::-1] if access == "read" else points
            lines.append(Line(path_of(ends), "arena", "both" if access == "readwrite" else "end"))
    return lines, arenas


def token_lines(column: GraphColumn) -> tuple[list[Line], list[Pill]]:
    """The chain of tokens: from the step before, through every arena access, to the step after."""
    if not column.graph.tokens:
        return [], []
    x = column.x + PAD + TOKEN_INSET
    top = column.tops[0] - BEND - PILL_HEIGHT - 3
    bottom = column.bottoms[-1] + PILL_TOP
    lines = []
    for link in column.graph.tokens:
        points: list[Point] = [(x, top + PILL_HEIGHT)]
        if link.source is not None:
            box = column.boxes[link.source]
            y = box.bottom - _inset(box)
            points = [(box.x, y), (x, y)]
        if link.target is None:
            points.append((x, bottom))
        else:
            box = column.boxes[link.target]
            points += [(x, box.y + _inset(box)), (box.x, box.y + _inset(box))]
        lines.append(Line(path_of(points), "token", link=link))
    width = label_width("token")
    return lines, [Pill(x, y, width, "token", "token", True) for y in (top, bottom)]


def _inset(box: Box) -> float:
    return min(16.0, box.height / 4)

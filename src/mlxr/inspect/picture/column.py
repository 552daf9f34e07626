"""Places the boxes of one graph, and sets their sizes.

The source graph decides the heights: each of its rows is as high as its boxes need. A fused op stands beside the ops
that it replaced and is as high as all of them, so that the columns can be read across.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlxr.compiler.artifact import Op
from mlxr.inspect.layers import ranges
from mlxr.inspect.picture.content import BoxText, content_of, label_of, label_width
from mlxr.inspect.picture.folded import Folded, arena_access
from mlxr.inspect.picture.rows import GAP_X, PASS_WIDTH, OpRow, OpRows, make_rows, spread

GAP_Y = 36.0
ENTER_LAYERS = 26.0
LEAVE_LAYERS = 14.0
BEND = 11.0
PILL_TOP = 7.0
PILL_HEIGHT = 14.0
ARENA_WIDTH = 46.0
ARENA_GAP = 20.0
LANE_WIDTH = 12.0
PAD = 12.0
TOKEN_WIDTH = 30.0
SINGLE_WIDTH = 132.0
FUSED_WIDTH = 184.0


@dataclass(frozen=True)
class Box:
    """An op's box."""

    op: Op
    content: BoxText
    x: float
    y: float
    width: float
    height: float

    @property
    def centre(self) -> float:
        """The x of its middle."""
        return self.x + self.width / 2

    @property
    def middle(self) -> float:
        """The y of its middle."""
        return self.y + self.height / 2

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.height


@dataclass(frozen=True)
class Frame:
    """The frame around a representative layer."""

    x: float
    y: float
    width: float
    height: float
    label: str


@dataclass(frozen=True)
class GraphColumn:
    """One graph, placed. `tops` and `bottoms` are the edges of its rows; x positions are of the whole picture."""

    graph: Folded
    rows: OpRows
    x: float
    width: float
    inner_x: float
    inner_width: float
    tops: tuple[float, ...]
    bottoms: tuple[float, ...]
    boxes: Mapping[str, Box]
    frames: tuple[Frame, ...]

    @property
    def centre(self) -> float:
        """Middle of the boxes."""
        return self.inner_x + self.inner_width / 2

    @property
    def inner_right(self) -> float:
        """Right edge of the boxes."""
        return self.inner_x + self.inner_width


def source_column(graph: Folded, x: float, y: float) -> GraphColumn:
    """Places the source graph, its first row at `y`."""
    rows = make_rows(graph)
    contents = {op.name: content_of(graph.graph, op, ()) for op in graph.ops}
    widths: dict[str, float] = {}
    for row in rows.rows:
        least = max(max(contents[op.name].width, _pill_width(graph, op)) for op in row.ops)
        widths |= {op.name: max(least, SINGLE_WIDTH if len(row.ops) == 1 and not row.passes else 0.0) for op in row.ops}
    heights = [max(contents[op.name].height(widths[op.name]) for op in row.ops) for row in rows.rows]
    tops: list[float] = []
    for number in range(len(rows.rows)):
        start = y if number == 0 else tops[-1] + heights[number - 1]
        tops.append(start + _gap(graph, rows.rows, number))
    bottoms = [top + height for top, height in zip(tops, heights, strict=True)]
    return _column(graph, rows, contents, widths, x, tops, bottoms)


def fused_column(graph: Folded, origins: Mapping[str, tuple[Op, ...]], source: GraphColumn, x: float) -> GraphColumn:
    """Places a fused graph beside the source graph it came from."""
    rows = make_rows(graph)
    contents = {op.name: content_of(graph.graph, op, origins[op.name]) for op in graph.ops}
    least = {op.name: max(contents[op.name].width, _pill_width(graph, op)) for op in graph.ops}
    inner = max(FUSED_WIDTH, *(_row_width(row, least) for row in rows.rows))
    widths = {
        op.name: (inner - len(row.passes) * (PASS_WIDTH + GAP_X) - (len(row.ops) - 1) * GAP_X) / len(row.ops)
        for row in rows.rows
        for op in row.ops
    }
    needs = [max(contents[op.name].height(widths[op.name]) for op in row.ops) for row in rows.rows]
    spans = _spans(rows.rows, origins, source)
    tops: list[float] = []
    bottoms: list[float] = []
    for number, (need, span) in enumerate(zip(needs, spans, strict=True)):
        start = source.tops[0] if number == 0 else bottoms[-1] + _gap(graph, rows.rows, number)
        tops.append(max(start, span[0]) if span else start)
        bottoms.append(max(tops[-1] + need, span[1] if span else 0.0))
    return _column(graph, rows, contents, widths, x, tops, bottoms)


def _row_width(row: OpRow, least: Mapping[str, float]) -> float:
    each = max(least[op.name] for op in row.ops)
    return len(row.ops) * (each + GAP_X) - GAP_X + len(row.passes) * (PASS_WIDTH + GAP_X)


def _pill_width(graph: Folded, op: Op) -> float:
    shown = {link.value for link in graph.links if link.source == op.name}
    return sum(label_width(label_of(graph, graph.value(name))) for name in shown)


def _gap(graph: Folded, rows: Sequence[OpRow], number: int) -> float:
    """Space above a row."""
    section = rows[number].section
    enters = number == 0 or rows[number - 1].section != section
    gap = 0.0 if number == 0 else GAP_Y
    if enters and graph.sections[section].layers:
        gap += ENTER_LAYERS
    if enters and number and graph.sections[rows[number - 1].section].layers:
        gap += LEAVE_LAYERS
    return gap


def _spans(
    rows: Sequence[OpRow], origins: Mapping[str, tuple[Op, ...]], source: GraphColumn
) -> list[tuple[float, float] | None]:
    """The height beside the replaced ops for every row; rows that would overlap share it evenly."""
    spans: list[tuple[float, float] | None] = []
    for row in rows:
        numbers = [source.rows.row_of[op.name] for fused in row.ops for op in origins[fused.name]]
        spans.append((source.tops[min(numbers)], source.bottoms[max(numbers)]) if numbers else None)
    number = 0
    while number < len(spans):
        first = spans[number]
        end = number + 1
        if first is not None:
            low, high = first
            while end < len(spans) and (span := spans[end]) is not None and span[0] < high:
                low, high = min(low, span[0]), max(high, span[1])
                end += 1
            each = (high - low - (end - number - 1) * GAP_Y) / (end - number)
            for i in range(number, end):
                top = low + (i - number) * (each + GAP_Y)
                spans[i] = (top, top + each)
        number = end
    return spans


def _column(
    graph: Folded,
    rows: OpRows,
    contents: Mapping[str, BoxText],
    widths: Mapping[str, float],
    x: float,
    tops: Sequence[float],
    bottoms: Sequence[float],
) -> GraphColumn:
    inner_width = spread(rows, graph, lambda op: widths[op.name])
    inner_x = x + (PAD + TOKEN_WIDTH if graph.tokens else PAD)
    beside = ARENA_GAP + ARENA_WIDTH + PAD if any(arena_access(op) != "none" for op in graph.ops) else 0.0
    width = inner_x - x + inner_width + beside + max(0, rows.num_lanes - 1) * LANE_WIDTH + PAD
    boxes = {
        op.name: Box(
            op,
            contents[op.name],
            inner_x + inner_width / 2 + rows.op_x[op.name] - widths[op.name] / 2,
            tops[number],
            widths[op.name],
            bottoms[number] - tops[number],
        )
        for number, row in enumerate(rows.rows)
        for op in row.ops
    }
    frames = []
    for number, section in enumerate(graph.sections):
        inside = [i for i, row in enumerate(rows.rows) if row.section == number]
        if section.layers:
            top = tops[inside[0]] - BEND - ENTER_LAYERS + 2
            bottom = bottoms[inside[-1]] + PILL_TOP + PILL_HEIGHT + 6
            times = len(section.layers)
            label = f"layer{'s' if times > 1 else ''} {ranges(section.layers)}{f' (× {times})' if times > 1 else ''}"
            frames.append(Frame(x + 5, top, width - 10, bottom - top, label))
    return GraphColumn(graph, rows, x, width, inner_x, inner_width, tuple(tops), tuple(bottoms), boxes, tuple(frames))

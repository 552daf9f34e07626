"""The whole picture: three columns, title and legend, rendered as SVG. The same artifact gives the same bytes."""

import functools
from dataclasses import dataclass, replace
from pathlib import Path

import jinja2

from mlxr.compiler.artifact import Artifact, OpGraph
from mlxr.compiler.errors import MlxrError
from mlxr.compiler.spec.heads_text import heads_of
from mlxr.compiler.targets.environment import environment
from mlxr.inspect.layers import model_layer
from mlxr.inspect.picture.column import PILL_HEIGHT, PILL_TOP, Box, Frame, GraphColumn, fused_column, source_column
from mlxr.inspect.picture.content import LINE, PAD_Y, Badge
from mlxr.inspect.picture.folded import Folded, fold, layer_groups
from mlxr.inspect.picture.lines import ArenaBox, Line, Pill, arena_lines, token_lines, value_lines
from mlxr.inspect.picture.origins import origins
from mlxr.inspect.report import count, parameters
from mlxr.output_file import is_written_through, write_output

MARGIN = 14.0
TITLE_HEIGHT = 62.0
HEADER_HEIGHT = 52.0
FIRST_ROW = TITLE_HEIGHT + HEADER_HEIGHT + 40.0
LEGEND_HEIGHT = 66.0
COLUMN_GAP = 12.0
BAND_MARGIN = 5.0

ABOUT = {
    "source": ("Source graph", "as the spec describes it"),
    "decode": ("Decode", "after fusion: one new token a sequence"),
    "prefill": ("Prefill", "after fusion: prompts and mixed batches"),
}
"""The graphs in the order of their columns: title, and what they are."""
_LEGEND = (
    ("gather", "gather"),
    ("norm", "norm"),
    ("matmul", "matmul"),
    ("rope", "RoPE"),
    ("cache", "cache write"),
    ("attention", "attention"),
    ("elementwise", "elementwise"),
)


@dataclass(frozen=True)
class TextLine:
    """A line of text inside a box; `x` is its middle, `y` its baseline."""

    x: float
    y: float
    text: str
    style: str


@dataclass(frozen=True)
class DrawnBox:
    """A box as the template takes it, with its text and chips at their places in the picture."""

    x: float
    y: float
    width: float
    height: float
    family: str
    fused: bool
    texts: tuple[TextLine, ...]
    chips: tuple[Badge, ...]


@dataclass(frozen=True)
class Band:
    """The background of the source ops that one fused op replaces."""

    x: float
    y: float
    width: float
    height: float
    family: str


@dataclass(frozen=True)
class DrawnColumn:
    """A column as the template takes it."""

    x: float
    width: float
    title: str
    about: str
    counts: str
    frames: tuple[Frame, ...]
    bands: tuple[Band, ...]
    boxes: tuple[DrawnBox, ...]
    arenas: tuple[ArenaBox, ...]
    lines: tuple[Line, ...]
    pills: tuple[Pill, ...]


@dataclass(frozen=True)
class Picture:
    """Everything that the template draws."""

    width: float
    height: float
    title: str
    about: str
    columns: tuple[DrawnColumn, ...]
    column_y: float
    column_height: float
    legend_y: float
    legend: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def place_columns(artifact: Artifact) -> tuple[list[GraphColumn], list[Band]]:
    """The three graphs of an artifact, placed side by side, and the bands behind the source ops."""
    graphs = [_with_model_layers(artifact.graph(name)) for name in ABOUT]
    groups = layer_groups(graphs)
    source, *fused = (fold(graph, groups, artifact.plan.first.types.activations) for graph in graphs)
    columns = [source_column(source, MARGIN, FIRST_ROW)]
    for graph in fused:
        x = columns[-1].x + columns[-1].width + COLUMN_GAP
        columns.append(fused_column(graph, origins(source, graph), columns[0], x))
    return columns, _bands(columns[0], fused[0])


def _with_model_layers(graph: OpGraph) -> OpGraph:
    ops = [replace(op, layer=model_layer(op.name, op.layer)) for op in graph.ops]
    return OpGraph(graph.values, ops, graph.outputs)


def _bands(source: GraphColumn, fused: Folded) -> list[Band]:
    bands = []
    replaced = origins(source.graph, fused)
    for op in fused.ops:
        boxes = [source.boxes[old.name] for old in replaced[op.name]]
        if len(boxes) > 1:
            top = min(box.y for box in boxes) - BAND_MARGIN
            bottom = max(box.bottom for box in boxes) + BAND_MARGIN
            x, width = source.inner_x - BAND_MARGIN, source.inner_width + 2 * BAND_MARGIN
            bands.append(Band(x, top, width, bottom - top, op.attrs.family))
    return bands


def draw_graphs(artifact: Artifact) -> str:
    """The op graph before and after fusion, as SVG."""
    columns, bands = place_columns(artifact)
    spec, arena = artifact.spec, artifact.plan.arena
    bottom = max(column.bottoms[-1] for column in columns) + PILL_TOP + PILL_HEIGHT + 14
    width = columns[-1].x + columns[-1].width + MARGIN
    drawn = tuple(
        draw_column(artifact, name, column, bands if name == "source" else [])
        for name, column in zip(ABOUT, columns, strict=True)
    )
    picture = Picture(
        width=width,
        height=bottom + LEGEND_HEIGHT + MARGIN,
        title=f"{spec.name}: the op graph before and after fusion",
        about=(
            f"{count(parameters(artifact))} parameters, {spec.model.num_layers} layers, "
            f"{heads_of(spec.model, of='query heads', head_dim=True)}; values are "
            f"{artifact.plan.first.types.activations} unless marked; the arena holds "
            f"{arena.summary.replace(' x ', ' × ')}"
        ),
        columns=drawn,
        column_y=TITLE_HEIGHT,
        column_height=bottom - TITLE_HEIGHT,
        legend_y=bottom + 12,
        legend=_LEGEND,
        notes=(
            "A fused op stands beside the ops it replaces and lists them. Positions, slots, block tables and other "
            "metadata of a batch are not drawn.",
        ),
    )
    return _environment().get_template("svg/graph.svg.jinja").render(picture=picture)


def draw_column(artifact: Artifact, name: str, column: GraphColumn, bands: list[Band]) -> DrawnColumn:
    """A placed graph as the template takes it; its boxes are in the order of `column.boxes`."""
    values, pills = value_lines(column)
    arena, arenas = arena_lines(column)
    tokens, token_pills = token_lines(column)
    title, about = ABOUT[name]
    total = len(artifact.graph(name))
    per_layer = " or ".join(dict.fromkeys(str(len(section.ops)) for section in column.graph.sections if section.layers))
    return DrawnColumn(
        x=column.x,
        width=column.width,
        title=title,
        about=about,
        counts=f"{total} ops" + (f", {per_layer} a layer" if per_layer else ""),
        frames=column.frames,
        bands=tuple(bands),
        boxes=tuple(_draw_box(box) for box in column.boxes.values()),
        arenas=tuple(arenas),
        lines=(*values, *arena, *tokens),
        pills=(*pills, *token_pills),
    )


def _draw_box(box: Box) -> DrawnBox:
    content = box.content
    offset = box.y + (box.height - content.height(box.width)) / 2
    lines = [(content.title, "op"), *((note, "note") for note in content.notes)]
    texts = tuple(
        TextLine(box.centre, offset + PAD_Y + number * LINE + 10, text, style)
        for number, (text, style) in enumerate(lines)
    )
    chips = tuple(
        Badge(box.x + chip.x, offset + chip.y, chip.width, chip.text, chip.family)
        for chip in content.placed_chips(box.width)
    )
    return DrawnBox(box.x, box.y, box.width, box.height, content.family, bool(chips), texts, chips)


@functools.cache
def _environment() -> jinja2.Environment:
    """The kernels' environment with XML's escapes and a filter for pixels."""
    escaping = environment().overlay(autoescape=True)
    escaping.filters = {**escaping.filters, "px": lambda value: f"{value:.1f}".removesuffix(".0")}
    return escaping


def write_picture(svg: str, path: Path) -> None:
    """Writes an SVG file, whole or not at all.

    Raises:
        MlxrError: the name does not end in .svg, or the file cannot be written.
    """
    if path.suffix.lower() != ".svg" and not is_written_through(path):
        raise MlxrError(f"{path}: pictures are written as SVG; name a file that ends in .svg")
    write_output(path, svg.encode())

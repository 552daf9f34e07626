"""Puts ops into rows, and gives them sideways positions.

A row is a topological generation of a section, so that lines always run down. A value that passes rows on its way takes
a place in each of them (`Pass`), so that no line crosses a box; residuals and other long links run in lanes beside the
boxes instead. An item's position is the mean of the items above it, moved as little as is needed to keep items apart
(isotonic regression). Source: Sugiyama, Tagawa and Toda 1981, without crossing minimisation, which these graphs do not
need.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import networkx as nx

from mlxr.compiler.artifact import Op
from mlxr.compiler.ir.ops.elementwise import Add
from mlxr.inspect.picture.folded import Edge, Folded

PASS_WIDTH = 8.0
GAP_X = 10.0
FAR = 3
"""How many rows a line may span before it takes a lane."""


@dataclass(frozen=True)
class OpRow:
    """Ops side by side, and the links that pass between them."""

    section: int
    ops: tuple[Op, ...]
    passes: tuple[Edge, ...]


@dataclass
class OpRows:
    """All rows of a graph.

    Attributes:
        row_of: the row of each op.
        lanes: links that run beside the boxes, with their lane.
        op_x, pass_x: centres, from the centre of the column; set by `spread`.
    """

    rows: list[OpRow]
    row_of: dict[str, int]
    lanes: dict[Edge, int]
    op_x: dict[str, float] = field(default_factory=dict)
    pass_x: dict[tuple[Edge, int], float] = field(default_factory=dict)

    @property
    def num_lanes(self) -> int:
        """Lanes in use."""
        return max(self.lanes.values(), default=-1) + 1


def make_rows(graph: Folded) -> OpRows:
    """Places every op and every passing link in rows."""
    generations = [(s, ops) for s in range(len(graph.sections)) for ops in _generations(graph, s)]
    row_of = {op.name: number for number, (_, ops) in enumerate(generations) for op in ops}
    spans = {
        link: (row_of[link.source], row_of[link.target])
        for link in graph.links
        if link.source is not None and link.target is not None
    }
    far = {link: span for link, span in spans.items() if _is_far(graph, link, span)}
    rows = []
    for number, (section, ops) in enumerate(generations):
        passing = (link for link, (top, bottom) in spans.items() if link not in far and top < number < bottom)
        rows.append(OpRow(section, ops, tuple(passing)))
    return OpRows(rows, row_of, _lanes(far))


def _generations(graph: Folded, section: int) -> list[tuple[Op, ...]]:
    ops = {op.name: op for op in graph.sections[section].ops}
    place = {name: number for number, name in enumerate(ops)}
    order: nx.DiGraph[str] = nx.DiGraph()
    order.add_nodes_from(ops)
    links = [(link.source, link.target) for link in (*graph.links, *graph.tokens)]
    for source, target in [*links, *graph.order]:
        if source in ops and target in ops:
            order.add_edge(source, target)
    generations = nx.topological_generations(order)
    return [tuple(ops[name] for name in sorted(names, key=place.__getitem__)) for names in generations]


def _is_far(graph: Folded, link: Edge, span: tuple[int, int]) -> bool:
    rows = span[1] - span[0]
    assert link.target is not None, "only links between ops have spans"
    residual = link.port == "residual" or isinstance(graph.graph.op(link.target).attrs, Add)
    return rows >= FAR or (residual and rows > 1)


def _lanes(far: dict[Edge, tuple[int, int]]) -> dict[Edge, int]:
    """The innermost lane that is free over each link's rows."""
    ends: list[int] = []
    lanes: dict[Edge, int] = {}
    for link, (top, bottom) in sorted(far.items(), key=lambda item: (item[1], item[0].value)):
        free = next((lane for lane, end in enumerate(ends) if end <= top), len(ends))
        if free == len(ends):
            ends.append(bottom)
        ends[free] = bottom
        lanes[link] = free
    return lanes


def spread(rows: OpRows, graph: Folded, width_of: Callable[[Op], float]) -> float:
    """Sets the sideways positions.

    Args:
        rows: the rows; changed in place.
        graph: their graph.
        width_of: the width of an op's box.

    Returns:
        The width that holds all rows: that of the widest, within which the others are kept.
    """
    limit = max(_row_width(row, width_of) for row in rows.rows) / 2
    into: dict[str, list[Edge]] = {}
    for link in graph.links:
        if link.target is not None and link.source is not None and link not in rows.lanes:
            into.setdefault(link.target, []).append(link)

    def above(link: Edge, number: int) -> float:
        assert link.source is not None, "links into ops were chosen by their source"
        return rows.pass_x.get((link, number - 1), rows.op_x[link.source])

    for number, row in enumerate(rows.rows):
        items: list[tuple[float, int, float, Op | Edge]] = []
        for place, link in enumerate(row.passes):
            items.append((above(link, number), place - len(row.passes), PASS_WIDTH, link))
        for place, op in enumerate(row.ops):
            wanted = [above(link, number) for link in into.get(op.name, ())]
            alone = len(row.ops) == 1 and not row.passes
            items.append((sum(wanted) / len(wanted) if wanted and not alone else 0.0, place, width_of(op), op))
        items.sort(key=lambda item: item[:2])
        for item, x in zip(items, _apart([i[0] for i in items], [i[2] for i in items], limit), strict=True):
            if isinstance(item[3], Edge):
                rows.pass_x[item[3], number] = x
            else:
                rows.op_x[item[3].name] = x
    return 2 * limit


def _row_width(row: OpRow, width_of: Callable[[Op], float]) -> float:
    return sum(width_of(op) + GAP_X for op in row.ops) + len(row.passes) * (PASS_WIDTH + GAP_X) - GAP_X


def _apart(wanted: Sequence[float], widths: Sequence[float], limit: float) -> list[float]:
    """Positions nearest to the wanted ones, in their order, with gaps between neighbours and within +-limit."""
    offsets = [0.0]
    for left, right in pairwise(widths):
        offsets.append(offsets[-1] + (left + right) / 2 + GAP_X)
    pools: list[tuple[float, int]] = []
    for want, offset in zip(wanted, offsets, strict=True):
        pools.append((want - offset, 1))
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            (a, n), (b, m) = pools[-2:]
            pools[-2:] = [((a * n + b * m) / (n + m), n + m)]
    means = [mean for mean, number in pools for _ in range(number)]
    positions = [mean + offset for mean, offset in zip(means, offsets, strict=True)]
    over = max(0.0, positions[-1] + widths[-1] / 2 - limit)
    under = max(0.0, -limit - (positions[0] - over - widths[0] / 2))
    return [x - over + under for x in positions]

"""The division of a launch's threadgroups among the matrices of its weight.

A weight may consist of several matrices, in different formats, one after the other. The threadgroups are divided into
spans. The outputs of a span have their rows in one segment of the weight or, in a gated projection, in one segment of
the gates and one of the ups.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise

from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.formats.weight_layout import Segment, WeightLayout


@dataclass(frozen=True)
class FormatRows:
    """Rows of one format that the outputs of a span need.

    Attributes:
        format: the format.
        first: the half of the weight that the first of `sources` belongs to: 0 or 1.
        sources: the segments with the rows, one for each half.
    """

    format: WeightFormat
    first: int
    sources: tuple[Segment, ...]


@dataclass(frozen=True)
class Span:
    """Threadgroups [first, end) of a launch, which compute the outputs [first_out, end_out)."""

    first: int
    end: int
    first_out: int
    end_out: int
    groups: tuple[FormatRows, ...]


def spans_of(layout: WeightLayout, halves: int, outputs: int, outputs_per_threadgroup: int) -> Iterator[Span]:
    """The spans of a launch, in order.

    Args:
        layout: the weight; its halves, if it has two, are gates and ups.
        halves: rows of the weight per output: 1 or 2.
        outputs: the number of outputs.
        outputs_per_threadgroup: outputs per threadgroup.
    """
    size = layout.rows // halves
    borders = {segment.end_row - half * size for segment in layout.segments for half in range(halves)}
    cuts = sorted({0, outputs} | {border for border in borders if 0 < border < outputs})
    first = 0
    for start, end in pairwise(cuts):
        sources = [(half, _segment_of(layout, start + half * size)) for half in range(halves)]
        groups = [
            FormatRows(format, members[0][0], tuple(segment for _, segment in members))
            for format, iterator in groupby(sources, key=lambda source: source[1].format)
            if (members := list(iterator))
        ]
        last = first + -(-(end - start) // outputs_per_threadgroup)
        yield Span(first, last, start, end, tuple(groups))
        first = last


def _segment_of(layout: WeightLayout, row: int) -> Segment:
    return next(s for s in layout.segments if s.first_row <= row < s.end_row)

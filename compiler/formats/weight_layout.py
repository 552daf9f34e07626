"""Where a weight's rows lie in the one buffer that kernels of the metal target read.

Nothing is repacked: a part keeps the bytes that its file has. Parts that share one float format make a typed array; any
other weight is an array of bytes: its parts one after the other, each part's planes one after the other, each plane's
rows whole, and every part and plane at a multiple of 16 bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat

ALIGNMENT = 16
"""Of parts and planes: what the widest loads ask for."""
PANEL_ROWS = 16
"""Rows of a weight that target cpu packs and computes together: the 32-bit lanes of a 512-bit vector."""


@dataclass(frozen=True)
class Segment:
    """Rows of a weight that lie the same way.

    Attributes:
        format: theirs.
        first_row, rows: which rows of the weight.
        offsets: where each plane begins, in bytes.
    """

    format: WeightFormat
    first_row: int
    rows: int
    offsets: tuple[int, ...]

    @property
    def end_row(self) -> int:
        """The row after the last."""
        return self.first_row + self.rows


@dataclass(frozen=True)
class WeightLayout:
    """A weight's buffer.

    Attributes:
        dtype: of its elements: a float type, or u8.
        columns: elements of a row.
        segments: its parts in order; neighbours that lie as one matrix are one segment.
        size_bytes: all of it.
    """

    dtype: DType
    columns: int
    segments: tuple[Segment, ...]
    size_bytes: int

    @property
    def rows(self) -> int:
        """Rows of the weight."""
        return self.segments[-1].end_row

    @property
    def formats(self) -> tuple[WeightFormat, ...]:
        """Its formats, each once, in order."""
        return tuple(dict.fromkeys(segment.format for segment in self.segments))


def plane_row_bytes(format: WeightFormat, plane: int, columns: int) -> int:
    """Bytes of a row of one plane."""
    return columns // format.block_elements * format.planes[plane].block_bytes


def layout_of(parts: Sequence[tuple[WeightFormat, int]], columns: int) -> WeightLayout:
    """The layout of a matrix (or, with one column, of a vector) whose parts have these formats and numbers of rows."""
    formats = {format for format, _ in parts}
    rows = sum(count for _, count in parts)
    if len(formats) == 1 and not parts[0][0].is_quantised:
        format = parts[0][0]
        return WeightLayout(format.dtype, columns, (Segment(format, 0, rows, (0,)),), format.row_bytes(columns) * rows)
    segments: list[Segment] = []
    row = offset = 0
    for (format, count), places in zip(parts, part_places(parts, columns), strict=True):
        last = segments[-1] if segments else None
        if last and last.format is format and len(places) == 1 and places[0] == offset:
            segments[-1] = replace(last, rows=last.rows + count)
        else:
            segments.append(Segment(format, row, count, places))
        row += count
        offset = places[-1] + count * plane_row_bytes(format, len(places) - 1, columns)
    return WeightLayout(DType.U8, columns, tuple(segments), aligned(offset))


def part_places(parts: Sequence[tuple[WeightFormat, int]], columns: int) -> list[tuple[int, ...]]:
    """Where each plane of each part begins in a buffer of bytes."""
    found, offset = [], 0
    for format, count in parts:
        places = []
        for plane in range(len(format.planes)):
            offset = aligned(offset)
            places.append(offset)
            offset += count * plane_row_bytes(format, plane, columns)
        found.append(tuple(places))
    return found


def aligned(size_bytes: int) -> int:
    """The next multiple of the alignment."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT

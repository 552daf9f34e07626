"""The layout of a weight in the buffer that kernels of the metal target read.

Nothing is repacked: a part keeps the bytes that it has in its file. If all parts have one float format, the buffer is a
typed array. Otherwise it is an array of bytes that holds the parts in order, the planes of each part in order, and the
rows of each plane. Every part and every plane begins at a multiple of 16 bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat

ALIGNMENT = 16
"""Alignment of parts and planes in bytes: the widest loads need it."""
PANEL_ROWS = 16
"""Rows of a weight that target cpu packs and computes together: the 32-bit lanes of a 512-bit vector."""


@dataclass(frozen=True)
class Segment:
    """Consecutive rows of a weight that have the same format.

    Attributes:
        format: the format of these rows.
        first_row, rows: which rows of the weight.
        offsets: the first byte of each plane.
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
        dtype: element type of the buffer: a float type, or u8.
        columns: elements of a row.
        segments: the parts in order; adjacent parts that together are one matrix are one segment.
        size_bytes: size of the buffer.
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
    def is_bytes(self) -> bool:
        """Whether the buffer is an array of bytes, not of the numbers of a float format."""
        return self.dtype is DType.U8

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
    """The first byte of each plane of each part in a buffer of bytes."""
    all_places, offset = [], 0
    for format, count in parts:
        places = []
        for plane in range(len(format.planes)):
            offset = aligned(offset)
            places.append(offset)
            offset += count * plane_row_bytes(format, plane, columns)
        all_places.append(tuple(places))
    return all_places


def aligned(size_bytes: int) -> int:
    """`size_bytes` rounded up to a multiple of the alignment."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT

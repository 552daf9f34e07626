"""Reads a tensor of the model from a weight file, as rows in the model's order.

In a file, a tensor may be among the rows of another, have its rows in another order, be one tensor for each expert, or
be in planes. The recipes of an artifact say so, and `TensorRows` follows them. A row is a number of whole blocks of its
format, so quantised rows are selected like others. A vector has rows of one element; a quantised vector is one row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import Recipe, Rows, WeightFormat, plane_row_bytes
from mlxr.runtime.weights.decode_planes import decode_planes
from mlxr.runtime.weights.element_types import decode
from mlxr.runtime.weights.stored_tensor import StoredTensor

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class TensorBytes(Protocol):
    """A source of the bytes of stored tensors: a mapped file, or memory."""

    def rows(self, tensor: StoredTensor, /) -> Bytes:
        """A tensor's bytes: [rows, bytes of a row], read-only."""

    def forget(self, tensor: StoredTensor, first: int, last: int, /) -> None:
        """Says that bytes [first, last) of a tensor are not needed soon."""


class _Span(NamedTuple):
    """Rows [first, last) of the file's tensor with the number `piece`, or of the rows selected from it."""

    piece: int
    first: int
    last: int


@dataclass(frozen=True)
class TensorRows:
    """A tensor of the model, and how to read it. It has no data of its own.

    Attributes:
        name: the canonical name.
        where: its name in messages.
        shape: rows and columns, or the length of a vector.
        format: the name of a `WeightFormat`, or of an element type that no spec can name, such as `f64`.
        pieces: the tensors of the file that it consists of, in order, each as its planes; most formats have one plane.
        recipe: which rows of each piece, and what is added to their numbers.
        source: has the bytes of the planes.
    """

    name: str
    where: str
    shape: tuple[int, ...]
    format: str
    pieces: tuple[tuple[StoredTensor, ...], ...]
    recipe: Recipe
    source: TensorBytes

    @property
    def num_rows(self) -> int:
        """The number of rows; of a vector, the number of elements."""
        return self.shape[0]

    @property
    def columns(self) -> int:
        """Elements of a row."""
        return self.shape[1] if len(self.shape) > 1 else 1

    @property
    def planes(self) -> tuple[StoredTensor, ...]:
        """The planes of the first piece; the others have planes of the same types."""
        return self.pieces[0]

    @property
    def is_plain(self) -> bool:
        """Whether the rows can be used in place: they are one tensor, in the model's order, and nothing is added."""
        return len(self.pieces) == 1 and self.recipe.rows is None and not self.recipe.add

    @property
    def is_changed(self) -> bool:
        """Whether its numbers differ from those in the file."""
        return self.recipe.add != 0

    @property
    def is_one_block_row(self) -> bool:
        """Whether it is a quantised vector, which has blocks but no rows."""
        return len(self.shape) == 1 and self.planes[0].element_type.block_elements > 1

    def plane_rows(self, plane: int, first: int, last: int) -> Bytes:
        """Rows [first, last) of one plane: [rows, bytes of a row], contiguous; a view of the file if it is plain.

        Raises:
            WeightsError: the file cannot be mapped or was cut short.
        """
        pieces = [self._rows_of(plane, span) for span in self._spans(first, last)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def numbers(self, first: int, last: int) -> Floats:
        """Rows [first, last) as numbers: [rows, columns], with what the recipe adds. Quantised vectors are read whole.

        Raises:
            WeightsError: as `plane_rows`.
        """
        if self.is_one_block_row:
            blocks = self.source.rows(self.planes[0]).reshape(1, -1)
            numbers = decode(blocks, self.planes[0].element_type).reshape(-1, 1)[first:last]
        elif len(self.planes) > 1:
            planes = [self.plane_rows(plane, first, last) for plane in range(len(self.planes))]
            numbers = decode_planes(planes, self.format)
        else:
            numbers = decode(self.plane_rows(0, first, last), self.planes[0].element_type)
        rows = np.asarray(numbers, np.float32).reshape(last - first, self.columns)
        return rows + np.float32(self.recipe.add) if self.recipe.add else rows

    def forget(self, first: int, last: int) -> None:
        """Says that rows [first, last) are not needed soon; they can still be read."""
        for span in self._spans(first, last):
            rows = self._file_rows(span)
            low, high = (rows.start, rows.stop) if isinstance(rows, slice) else (int(rows.min()), int(rows.max()) + 1)
            for index, plane in enumerate(self.pieces[span.piece]):
                size = row_bytes(self.format, self.planes, index, self.columns)
                self.source.forget(plane, low * size, high * size)

    def _spans(self, first: int, last: int) -> Iterator[_Span]:
        of_piece = self.num_rows // len(self.pieces)
        for piece in range(first // of_piece, -(-last // of_piece)):
            start = piece * of_piece
            yield _Span(piece, max(first - start, 0), min(last - start, of_piece))

    def _rows_of(self, plane: int, span: _Span) -> Bytes:
        size = row_bytes(self.format, self.planes, plane, self.columns)
        return self.source.rows(self.pieces[span.piece][plane]).reshape(-1, size)[self._file_rows(span)]

    def _file_rows(self, span: _Span) -> slice | npt.NDArray[np.int64]:
        rows = self.recipe.rows
        return slice(span.first, span.last) if rows is None else selected(rows, span.first, span.last)


def row_bytes(format: str, planes: tuple[StoredTensor, ...], plane: int, columns: int) -> int:
    """Bytes of a row of so many columns in a plane."""
    if len(planes) == 1:
        return planes[0].element_type.size_bytes(columns)
    return plane_row_bytes(WeightFormat(format), plane, columns)


def selected(rows: Rows, first: int, last: int) -> slice | npt.NDArray[np.int64]:
    """The file's rows for rows [first, last) of the model: a slice if they are adjacent and in order."""
    if len(rows.counts) == 1 and rows.strides[0] == 1:
        return slice(rows.start + first, rows.start + last)
    left = np.arange(first, last, dtype=np.int64)
    places = np.full(last - first, rows.start, np.int64)
    for count, stride in zip(reversed(rows.counts), reversed(rows.strides), strict=True):
        places += left % count * stride
        left //= count
    return places

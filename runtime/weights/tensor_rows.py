"""Reads a tensor of the model from a weight file, as rows in the model's order.

In a file, a tensor may be among the rows or the columns of another, have its rows in another order, be one tensor for
each expert, or be in planes. The recipes of an artifact say so, and `TensorRows` follows them. A row is a number of
whole blocks of its format, so quantised rows are selected like others. A vector has rows of one element; a quantised
vector is one row.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import Recipe, Rows, WeightFormat, plane_row_bytes
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.decode_planes import decode_planes
from mlxr.runtime.weights.element_types import decode
from mlxr.runtime.weights.packed_integers import MadePlane
from mlxr.runtime.weights.scaled_tensors import Divisor, tile_factors
from mlxr.runtime.weights.stored_tensor import StoredTensor

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class TensorBytes(Protocol):
    """A source of the bytes of stored tensors: a mapped file, or memory."""

    def rows(self, tensor: StoredTensor, /) -> Bytes:
        """A tensor's bytes: [rows, bytes of a row], read-only."""

    def forget(self, tensor: StoredTensor, first: int, last: int, /) -> None:
        """Says that bytes [first, last) of a tensor are not needed soon."""

    def count(self, size_bytes: int, /) -> None:
        """Says that so many bytes of tensors are read. Several threads may call it."""


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
        recipe: which rows and columns of each piece, and what is added to their numbers.
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
    def file_columns(self) -> int:
        """Elements of a row of the file's tensor, of which the recipe may take some."""
        return self.columns if self.recipe.columns is None else self.recipe.columns.total

    @property
    def planes(self) -> tuple[StoredTensor, ...]:
        """The planes of the first piece; the others have planes of the same types."""
        return self.pieces[0]

    @property
    def is_plain(self) -> bool:
        """Whether the rows can be used in place: adjacent whole rows of one tensor, in order, and nothing is added."""
        adjacent = self.recipe.rows is None or _are_adjacent(self.recipe.rows)
        has_rows = adjacent and self.recipe.columns is None and not self.recipe.is_transposed
        return len(self.pieces) == 1 and has_rows and not self.is_changed

    @property
    def is_changed(self) -> bool:
        """Whether its numbers differ from those in the file."""
        recipe = self.recipe
        return recipe.add != 0 or recipe.times != 1 or recipe.unit_rows or recipe.negative_exp

    @property
    def is_one_block_row(self) -> bool:
        """Whether it is a quantised vector, which has blocks but no rows."""
        return len(self.shape) == 1 and self.planes[0].element_type.block_elements > 1

    def plane_rows(self, plane: int, first: int, last: int) -> Bytes:
        """Rows [first, last) of one plane: [rows, bytes of a row], contiguous; a view of the file if it is plain.

        Raises:
            WeightsError: the file cannot be mapped or was cut short, or the columns divide blocks of its format.
        """
        if self._runs:
            return np.concatenate([run.plane_rows(plane, first, last) for run in self._runs], axis=1)
        columns = self.recipe.columns
        if columns is not None and self._whole_blocks() != (columns.first, columns.first + self.columns):
            raise WeightsError(
                f"{self.where} is {self.format}, whose blocks of {self._block_elements} columns would be divided by "
                f"columns {columns.first} to {columns.first + self.columns}; use fewer tensor ranks, or weights of "
                "another format"
            )
        return self._plane_rows(plane, first, last)

    def numbers(self, first: int, last: int) -> Floats:
        """Rows [first, last) as numbers: [rows, columns], as the recipe says. Quantised vectors are read whole.

        Raises:
            WeightsError: as `plane_rows`.
        """
        if self._runs:
            return np.concatenate([run.numbers(first, last) for run in self._runs], axis=1)
        if self.turned_width and (self._block_elements > 1 or self.planes[0].scales is not None):
            return self._turned_numbers(first, last)
        if self.is_one_block_row:
            numbers = self._vector()[first:last]
        elif len(self.planes) > 1:
            planes = [self._plane_rows(plane, first, last) for plane in range(len(self.planes))]
            numbers = decode_planes(planes, self.format)
        else:
            numbers = decode(self._plane_rows(0, first, last), self.planes[0].element_type)
            if self.planes[0].scales is not None:
                numbers = numbers * self._factors(first, last)
        if self.recipe.columns is not None:
            begin = self.recipe.columns.first - self._whole_blocks()[0]
            numbers = numbers[:, begin : begin + self.columns]
        rows = np.asarray(numbers, np.float32).reshape(last - first, self.columns)
        if self.recipe.unit_rows:
            assert self.recipe.columns is None, f"{self.name}: a part of a row does not say its length"
            rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
        if self.recipe.negative_exp:
            rows = -np.exp(rows)
        if self.recipe.times != 1:
            rows = rows * np.float32(self.recipe.times)
        return rows + np.float32(self.recipe.add) if self.recipe.add else rows

    @property
    def _runs(self) -> "tuple[TensorRows, ...]":
        """Its runs of adjacent columns, each as a tensor; none where all columns are adjacent."""
        columns = self.recipe.columns
        if columns is None or columns.runs == 1:
            return ()
        shape = self.num_rows, self.columns // columns.runs
        return tuple(replace(self, shape=shape, recipe=replace(self.recipe, columns=run)) for run in columns.each)

    @property
    def turned_width(self) -> int | None:
        """Columns of the file's tensor, where the matrices that it consists of are transposed each by itself."""
        return turned_width(self.recipe)

    def _turned_numbers(self, first: int, last: int) -> Floats:
        """Rows [first, last) of matrices whose blocks are decoded before they are transposed."""
        width, of_each, rows = self.turned_width, self.recipe.matrix_rows, self.recipe.rows
        assert width and of_each and rows is not None, "only such tensors are read so"
        chosen = selected(rows, first, last)
        places = np.arange(chosen.start, chosen.stop) if isinstance(chosen, slice) else chosen
        start = self.recipe.columns.first if self.recipe.columns is not None else 0
        file_rows = (1 + int(places.max()) // width) * of_each
        stored = replace(self, shape=(file_rows, width), recipe=Recipe(self.recipe.tensor))
        numbers = np.empty((last - first, self.columns), np.float32)
        for matrix in np.unique(places // width):
            own = places // width == matrix
            decoded = stored.numbers(int(matrix) * of_each, (int(matrix) + 1) * of_each)
            numbers[own] = decoded.T[places[own] % width, start : start + self.columns]
        return numbers

    def forget(self, first: int, last: int) -> None:
        """Says that rows [first, last) are not needed soon; they can still be read."""
        if self.recipe.is_transposed:
            return  # each of them lies all over the file's tensor
        for span in self._spans(first, last):
            rows = self._file_rows(span)
            low, high = (rows.start, rows.stop) if isinstance(rows, slice) else (int(rows.min()), int(rows.max()) + 1)
            for index, plane in enumerate(self.pieces[span.piece]):
                if isinstance(plane, MadePlane):
                    continue
                size = row_bytes(self.format, self.planes, index, self.file_columns)
                self.source.forget(plane, low * size, high * size)

    def _spans(self, first: int, last: int) -> Iterator[_Span]:
        of_piece = self.num_rows // len(self.pieces)
        for piece in range(first // of_piece, -(-last // of_piece)):
            start = piece * of_piece
            yield _Span(piece, max(first - start, 0), min(last - start, of_piece))

    def _factors(self, first: int, last: int) -> Floats:
        """What the numbers of rows [first, last) are multiplied by: [rows, columns of the file that are read]."""
        found = []
        for span in self._spans(first, last):
            tensor = self.pieces[span.piece][0]
            assert tensor.scales is not None, "the pieces of a tensor have the same planes"
            scales = decode(self.source.rows(tensor.scales).reshape(1, -1), tensor.scales.element_type)
            if (whole := tensor.scales.scales) is not None:
                factor = decode(self.source.rows(whole).reshape(1, -1), whole.element_type)
                scales = scales / factor if isinstance(whole, Divisor) else scales * factor
            rows = self._file_rows(span)
            places = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
            found.append(tile_factors(tensor, np.asarray(scales, np.float32), places, self._whole_blocks()))
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _vector(self) -> npt.NDArray[np.float32]:
        """The numbers of a quantised vector, [rows, 1]."""
        blocks = self.source.rows(self.planes[0]).reshape(1, -1)
        self.source.count(blocks.nbytes)
        numbers = decode(blocks, self.planes[0].element_type).reshape(-1, 1)
        return numbers[self._file_rows(_Span(0, 0, self.num_rows))]

    def _plane_rows(self, plane: int, first: int, last: int) -> Bytes:
        """Rows [first, last) of one plane, with all blocks that the columns touch."""
        pieces = [self._rows_of(plane, span) for span in self._spans(first, last)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _rows_of(self, plane: int, span: _Span) -> Bytes:
        if self.recipe.is_transposed:
            return self._columns_as_rows(self.pieces[span.piece][plane], span)
        sizes = (self.file_columns, *self._whole_blocks())
        size, start, stop = (row_bytes(self.format, self.planes, plane, columns) for columns in sizes)
        tensor, places = self.pieces[span.piece][plane], self._file_rows(span)
        if isinstance(tensor, MadePlane):
            places = np.arange(places.start, places.stop) if isinstance(places, slice) else places
            unit = tensor.element_type.block_bytes
            rows = tensor.rows(self.source, places, range(start // unit, stop // unit))
        else:  # columns are cut before rows are gathered, so that no other bytes are touched
            rows = np.ascontiguousarray(self.source.rows(tensor).reshape(-1, size)[:, start:stop][places])
        self.source.count(rows.nbytes)
        return rows

    def _columns_as_rows(self, tensor: StoredTensor, span: _Span) -> Bytes:
        """Rows of a tensor whose last two dimensions have changed places, so that files have them as columns."""
        num_rows, num_columns = tensor.shape[-2:]
        start, stop = self._whole_blocks()
        unit = np.dtype(f"u{tensor.element_type.block_bytes}")
        matrices = self.source.rows(tensor).reshape(-1).view(unit).reshape(-1, num_columns, num_rows)[:, start:stop]
        places = np.arange(tensor.num_elements // num_columns)[self._file_rows(span)]
        rows = np.empty((len(places), stop - start), unit)
        for matrix in np.unique(places // num_rows):
            own = places // num_rows == matrix
            rows[own] = matrices[matrix][:, places[own] % num_rows].T
        self.source.count(rows.nbytes)
        return rows.view(np.uint8)

    def _whole_blocks(self) -> tuple[int, int]:
        """The columns [start, stop) of all blocks that have columns of this tensor."""
        if self.recipe.columns is None:
            return 0, self.columns
        block, first = self._block_elements, self.recipe.columns.first
        return first // block * block, -(-(first + self.columns) // block) * block

    @property
    def _block_elements(self) -> int:
        """Columns that are quantised together."""
        if len(self.planes) == 1:
            return self.planes[0].element_type.block_elements
        return WeightFormat(self.format).block_elements

    def _file_rows(self, span: _Span) -> slice | npt.NDArray[np.int64]:
        rows = self.recipe.rows
        return slice(span.first, span.last) if rows is None else selected(rows, span.first, span.last)


def turned_width(recipe: Recipe) -> int | None:
    """Columns of a file's tensor that consists of matrices which are transposed each by itself; None of others."""
    return recipe.rows.counts[-1] if recipe.matrix_rows is not None and recipe.rows is not None else None


def row_bytes(format: str, planes: tuple[StoredTensor, ...], plane: int, columns: int) -> int:
    """Bytes of a row of so many columns in a plane."""
    if len(planes) == 1:
        return planes[0].element_type.size_bytes(columns)
    return plane_row_bytes(WeightFormat(format), plane, columns)


def selected(rows: Rows, first: int, last: int) -> slice | npt.NDArray[np.int64]:
    """The file's rows for rows [first, last) of the model: a slice if they are adjacent and in order."""
    if _are_adjacent(rows):
        return slice(rows.start + first, rows.start + last)
    left = np.arange(first, last, dtype=np.int64)
    places = np.full(last - first, rows.start, np.int64)
    for count, stride in zip(reversed(rows.counts), reversed(rows.strides), strict=True):
        places += left % count * stride
        left //= count
    return places


def _are_adjacent(rows: Rows) -> bool:
    """Whether they are adjacent in the file and in its order."""
    step = 1
    for count, stride in zip(reversed(rows.counts), reversed(rows.strides), strict=True):
        if count > 1 and stride != step:
            return False
        step *= count
    return True

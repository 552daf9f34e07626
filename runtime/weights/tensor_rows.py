"""A tensor of the model as rows of a weight file, in the model's order.

Files hold a tensor among the rows of another, with its rows in another order, as one tensor for each expert, or in
planes: the recipes of an artifact say so, and here they are followed. Rows are whole blocks of their format, so that
quantised ones are selected like others. Vectors have rows of one element; a quantised vector is one row.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import Recipe, Rows, TensorSource
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.decode_planes import decode_planes
from mlxr.runtime.weights.element_types import decode
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.stored_format import StoredFormat, planes_of, stored_format
from mlxr.runtime.weights.weight_file import TensorInfo, WeightFile, quoted

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def find_recipe(file: WeightFile, part: TensorSource) -> Recipe | None:
    """The first recipe whose tensors the file holds, or None where there is none."""
    options = part.gguf if file.format == "gguf" else part.safetensors
    return next((recipe for recipe in options if all(name in file.tensors for name in recipe.tensors)), None)


def expected_names(file: WeightFile, part: TensorSource) -> tuple[str, ...]:
    """Names under which a file of this kind may hold a part, for messages."""
    return tuple(recipe.tensor for recipe in (part.gguf if file.format == "gguf" else part.safetensors))


class _Span(NamedTuple):
    """Rows [first, last) of the file's tensor number `piece`, or those rows of its selection."""

    piece: int
    first: int
    last: int


@dataclass(frozen=True)
class TensorRows:
    """A tensor of the model in a weight file. Holds no data of its own.

    Attributes:
        name: canonical.
        where: what to call it in messages.
        shape: rows and columns, or the length of a vector.
        stored: the format in which the file has it.
        recipe: which tensors of the file, and which rows of them.
        mapped: the file.
    """

    name: str
    where: str
    shape: tuple[int, ...]
    stored: StoredFormat
    recipe: Recipe
    mapped: MappedWeights

    @property
    def format(self) -> str:
        """The format's name: that of a `WeightFormat`, or of an element type that no spec can name, such as `f64`."""
        return self.stored.name

    @property
    def num_rows(self) -> int:
        """Rows; of a vector, its elements."""
        return self.shape[0]

    @property
    def columns(self) -> int:
        """Elements of a row."""
        return self.shape[1] if len(self.shape) > 1 else 1

    @property
    def is_plain(self) -> bool:
        """Whether the file's rows are the model's, one tensor, nothing added: they can be used where they lie."""
        return self.recipe.stack == 1 and self.recipe.rows is None and not self.recipe.add

    @property
    def is_changed(self) -> bool:
        """Whether its numbers are not those of its bytes."""
        return self.recipe.add != 0

    @property
    def is_one_block_row(self) -> bool:
        """Whether it is a quantised vector, which has blocks but no rows."""
        return len(self.shape) == 1 and self.stored.block_elements > 1

    def plane_rows(self, plane: int, first: int, last: int) -> Bytes:
        """Rows [first, last) of one plane: [rows, bytes of a row], contiguous; a view of the file where it is plain.

        Raises:
            WeightsError: the file cannot be mapped or was cut short.
        """
        pieces = [self._rows_of(plane, span) for span in self._spans(first, last)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def numbers(self, first: int, last: int) -> Floats:
        """Rows [first, last) as numbers: [rows, columns], with what the recipe adds. Of quantised vectors, all rows.

        Raises:
            WeightsError: as `plane_rows`.
        """
        if self.is_one_block_row:
            raw = self._bytes(self.recipe.tensors[0], 0).reshape(1, -1)
            numbers = decode(raw, self.stored.types[0]).reshape(-1, 1)[first:last]
        elif len(self.stored.types) > 1:
            planes = [self.plane_rows(plane, first, last) for plane in range(len(self.stored.types))]
            numbers = decode_planes(planes, self.format)
        else:
            numbers = decode(self.plane_rows(0, first, last), self.stored.types[0])
        found = np.asarray(numbers, np.float32).reshape(last - first, self.columns)
        return found + np.float32(self.recipe.add) if self.recipe.add else found

    def forget(self, first: int, last: int) -> None:
        """Says that rows [first, last) will not be needed soon; harmless if they are after all."""
        for span in self._spans(first, last):
            rows = self._file_rows(span)
            low, high = (rows.start, rows.stop) if isinstance(rows, slice) else (int(rows.min()), int(rows.max()) + 1)
            name = self.recipe.tensors[span.piece]
            for plane, of_plane in enumerate(planes_of(name, self.stored)):
                size = self.stored.row_bytes(plane, self.columns)
                self.mapped.forget_bytes(of_plane, low * size, high * size)

    def _spans(self, first: int, last: int) -> Iterator[_Span]:
        of_piece = self.num_rows // self.recipe.stack
        for piece in range(first // of_piece, -(-last // of_piece)):
            start = piece * of_piece
            yield _Span(piece, max(first - start, 0), min(last - start, of_piece))

    def _rows_of(self, plane: int, span: _Span) -> Bytes:
        rows = self._bytes(self.recipe.tensors[span.piece], plane).reshape(
            -1, self.stored.row_bytes(plane, self.columns)
        )
        return rows[self._file_rows(span)]

    def _file_rows(self, span: _Span) -> slice | npt.NDArray[np.int64]:
        rows = self.recipe.rows
        return slice(span.first, span.last) if rows is None else selected(rows, span.first, span.last)

    def _bytes(self, name: str, plane: int) -> Bytes:
        return self.mapped.rows(planes_of(name, self.stored)[plane]).reshape(-1)


def selected(rows: Rows, first: int, last: int) -> slice | npt.NDArray[np.int64]:
    """Rows of the file for rows [first, last) of the model: a slice where they follow one another."""
    if len(rows.counts) == 1 and rows.strides[0] == 1:
        return slice(rows.start + first, rows.start + last)
    left = np.arange(first, last, dtype=np.int64)
    found = np.full(last - first, rows.start, np.int64)
    for count, stride in zip(reversed(rows.counts), reversed(rows.strides), strict=True):
        found += left % count * stride
        left //= count
    return found


def open_tensor(mapped: MappedWeights, part: TensorSource) -> TensorRows:
    """A part's tensor in a weight file.

    Raises:
        WeightsError: the file has no such tensor, or another than the recipe's: another shape, or a type of no use.
    """
    file = mapped.file
    recipe = find_recipe(file, part)
    if recipe is None:
        names = " or ".join(quoted(name) for name in expected_names(file, part))
        raise WeightsError(f"{file.path}: holds no tensor {names} ({part.name})")
    where = f"{file.path}: tensor {quoted(recipe.tensor)} ({part.name})"
    stored = stored_format(file, recipe.tensors[0], part.shape[1] if len(part.shape) > 1 else 1)
    if isinstance(stored, str):
        raise WeightsError(f"{where} {stored}")
    tensor = TensorRows(part.name, where, part.shape, stored, recipe, mapped)
    if fault := _fault_of(tensor):
        raise WeightsError(f"{where} {fault}")
    return tensor


def _fault_of(tensor: TensorRows) -> str | None:
    """What keeps a tensor's rows from being found in the file, or None."""
    file, recipe, columns = tensor.mapped.file, tensor.recipe, tensor.columns
    if tensor.num_rows % recipe.stack:
        return f"has {tensor.num_rows} rows in {recipe.stack} tensors"
    needed = tensor.num_rows // recipe.stack
    if recipe.rows is not None:
        assert math.prod(recipe.rows.counts) == needed, f"{tensor.name}: {recipe.rows} for {needed} rows"
        strides = zip(recipe.rows.counts, recipe.rows.strides, strict=True)
        needed = 1 + recipe.rows.start + sum((count - 1) * stride for count, stride in strides)
    for name in recipe.tensors:
        stored, info = stored_format(file, name, columns), file.tensors[name]
        if isinstance(stored, str):
            return stored
        if stored != tensor.stored:
            return f"is {stored.name} in {quoted(name)}, and {tensor.format} in {quoted(recipe.tensors[0])}"
        rows = rows_in_file(info, stored, columns)
        if rows is None or rows < needed or (recipe.rows is None and rows != needed):
            return f"got {list(info.shape)}, expected {list(tensor.shape)}"
    return None


def rows_in_file(info: TensorInfo, stored: StoredFormat, columns: int) -> int | None:
    """Rows of so many columns in a file's tensor, whatever its outer dimensions, or None if its rows are others."""
    if columns == 1:  # of a vector
        return info.num_elements
    row_bytes = stored.row_bytes(0, columns)
    of_element = info.element_type.block_bytes / info.element_type.block_elements
    widths = [math.prod(info.shape[-count:]) * of_element for count in (1, 2) if count < len(info.shape)]
    return info.size_bytes // row_bytes if row_bytes and row_bytes in widths else None

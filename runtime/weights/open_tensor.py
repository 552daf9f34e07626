"""Finds a tensor of the model in a weight file, and how it is read there.

The meaning of the bits in planes follows from the shapes of their tensors and the columns of the matrix.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mlxr.compiler.artifact import Recipe, TensorSource, plane_format, plane_names
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.packed_integers import integer_planes
from mlxr.runtime.weights.scaled_tensors import has_tiles
from mlxr.runtime.weights.stored_tensor import StoredTensor, quoted
from mlxr.runtime.weights.tensor_rows import TensorRows, row_bytes, turned_width
from mlxr.runtime.weights.weight_file import WeightFile


class _FaultError(Exception):
    """The reason why a tensor cannot be read; the caller adds the name of the tensor."""


class _Piece(NamedTuple):
    """A tensor of a file: the name of its format, and its planes."""

    format: str
    planes: tuple[StoredTensor, ...]


class TensorError(WeightsError):
    """A tensor that is not as a model needs it.

    Attributes:
        what: which one, and what is wrong with it.
    """

    def __init__(self, path: Path, what: str) -> None:
        """Puts the file before the text."""
        super().__init__(f"{path}: tensor {what}")
        self.what = what


def find_recipe(file: WeightFile, part: TensorSource) -> Recipe | None:
    """The first recipe whose tensors are in the file, and of several for these the one that fits their shapes.

    None if there is none; if no shapes fit, the first one.
    """
    held = [recipe for recipe in _recipes(file, part) if _is_for(recipe, file)]
    same = [recipe for recipe in held if recipe.tensors == held[0].tensors]
    if len(same) < 2:
        return held[0] if held else None
    return next((recipe for recipe in same if _fits(recipe, file, part)), held[0])


def _fits(recipe: Recipe, file: WeightFile, part: TensorSource) -> bool:
    try:
        _checked_pieces(file, recipe, part)
    except _FaultError:
        return False
    return True


def _is_for(recipe: Recipe, file: WeightFile) -> bool:
    mark = recipe.beside
    return all(name in file.tensors for name in recipe.tensors) and (
        mark is None
        or any(mark in name and (not recipe.beside_wide or t.shape[-1] > 1) for name, t in file.tensors.items())
    )


def expected_names(file: WeightFile, part: TensorSource) -> tuple[str, ...]:
    """The names that a part may have in a file of this kind, for messages."""
    return tuple(dict.fromkeys(recipe.tensor for recipe in _recipes(file, part)))


def open_tensor(mapped: MappedWeights, part: TensorSource) -> TensorRows:
    """A part's tensor in a weight file.

    Raises:
        WeightsError: the file has no such tensor.
        TensorError: it has not the shape or type that the recipe needs.
    """
    file = mapped.file
    recipe = find_recipe(file, part)
    if recipe is None:
        names = " or ".join(quoted(name) for name in expected_names(file, part))
        raise WeightsError(f"{file.path}: holds no tensor {names} ({part.name})")
    name = f"{quoted(recipe.tensor)} ({part.name})"
    try:
        pieces = _checked_pieces(file, recipe, part)
    except _FaultError as error:
        raise TensorError(file.path, f"{name} {error}") from error
    where = f"{file.path}: tensor {name}"
    return TensorRows(part.name, where, part.shape, pieces[0].format, tuple(p.planes for p in pieces), recipe, mapped)


def rows_in_file(format: str, planes: tuple[StoredTensor, ...], columns: int) -> int | None:
    """The rows of so many columns in a file's tensor, over all its outer dimensions; None if it has other columns."""
    first = planes[0]
    if columns == 1:  # of a vector
        return first.num_elements
    if len(first.shape) == 1:  # converters drop the outer dimension of a matrix of one row
        return 1 if first.num_elements == columns else None
    expected = row_bytes(format, planes, 0, columns)
    shapes = [first.shape[-count:] for count in (1, 2) if count < len(first.shape)]
    widths = [math.prod(shape) * first.element_type.block_bytes / first.element_type.block_elements for shape in shapes]
    return first.size_bytes // expected if expected and expected in widths else None


def _recipes(file: WeightFile, part: TensorSource) -> tuple[Recipe, ...]:
    return part.gguf if file.format == "gguf" else part.safetensors


def _checked_pieces(file: WeightFile, recipe: Recipe, part: TensorSource) -> list[_Piece]:
    """The tensors that a recipe names. All must have the same format and the rows that the recipe takes."""
    columns = _file_columns(recipe, part)
    needed = _rows_needed(recipe, part)
    pieces: list[_Piece] = []
    for name in recipe.tensors:
        pieces.append(piece := _find_piece(file, name, columns, recipe))
        if _types(piece) != _types(pieces[0]):
            raise _FaultError(
                f"is {piece.format} in {quoted(name)}, and {pieces[0].format} in {quoted(recipe.tensors[0])}"
            )
        rows = _turned_rows(piece, recipe) if _is_turned_late(piece, recipe) else rows_in_file(*piece, columns)
        if rows is None or rows < needed or (recipe.rows is None and rows != needed):
            expected = [part.shape[0], columns] if len(part.shape) > 1 else list(part.shape)
            raise _FaultError(f"got {list(piece.planes[0].shape)}, expected {expected}")
    return pieces


def _file_columns(recipe: Recipe, part: TensorSource) -> int:
    """Columns of the tensors of a recipe; 1 of a vector."""
    columns = part.shape[1] if len(part.shape) > 1 else 1
    if recipe.columns is None:
        return columns
    assert recipe.columns.end(columns) <= recipe.columns.total, f"{part.name}: {recipe.columns} for {columns}"
    return recipe.columns.total


def _types(piece: _Piece) -> tuple[str, list[str]]:
    scales = [plane.scales.type for plane in piece.planes if plane.scales is not None]
    return piece.format, [*(plane.type for plane in piece.planes), *scales]


def _rows_needed(recipe: Recipe, part: TensorSource) -> int:
    """How many rows each tensor of a recipe must have: at least so many, or exactly if the recipe takes all rows."""
    if part.shape[0] % recipe.stack:
        raise _FaultError(f"has {part.shape[0]} rows in {recipe.stack} tensors")
    count = part.shape[0] // recipe.stack
    if recipe.rows is None:
        return count
    assert math.prod(recipe.rows.counts) == count, f"{part.name}: {recipe.rows} for {count} rows"
    strides = zip(recipe.rows.counts, recipe.rows.strides, strict=True)
    return 1 + recipe.rows.start + sum((count - 1) * stride for count, stride in strides)


def _find_piece(file: WeightFile, name: str, columns: int, recipe: Recipe) -> _Piece:
    """A tensor with so many columns, once it is transposed if the recipe says so."""
    piece = _stored_piece(file, name, turned_width(recipe) or columns)
    return _turned(piece, recipe) if recipe.is_transposed and not _is_turned_late(piece, recipe) else piece


def _is_turned_late(piece: _Piece, recipe: Recipe) -> bool:
    """Whether blocks have to be decoded before they are transposed."""
    first = piece.planes[0]
    has_blocks = len(piece.planes) > 1 or first.element_type.block_elements > 1 or first.scales is not None
    return has_blocks and turned_width(recipe) is not None


def _turned_rows(piece: _Piece, recipe: Recipe) -> int | None:
    """The rows that a tensor has once its matrices are transposed; None if it does not consist of such matrices."""
    width, of_each = turned_width(recipe), recipe.matrix_rows
    rows = rows_in_file(*piece, width) if width else None
    return rows // of_each * width if rows and of_each and width and rows % of_each == 0 else None


def _stored_piece(file: WeightFile, name: str, columns: int) -> _Piece:
    tensor = file.tensors[name]
    _, scales_name, biases_name = plane_names(name)
    scales = file.tensors.get(scales_name) if file.format == "safetensors" else None
    if scales is not None and tensor.type == "I32":
        return _integers(tensor, scales, file.tensors.get(f"{name.removesuffix('.weight')}.zeros"), columns)
    if scales is not None:
        return _find_planes(tensor, scales, file.tensors.get(biases_name), columns)
    if tensor.element_type.is_readable and tensor.element_type.is_float:
        if tensor.scales is not None and not has_tiles(tensor, tensor.scales, columns):
            raise _FaultError(
                f"has numbers {list(tensor.shape)} {tensor.type} and scales {list(tensor.scales.shape)} "
                f"{tensor.scales.type}: no tiles of rows and columns have so many scales"
            )
        return _Piece(tensor.type.lower(), (tensor,))
    raise _FaultError(f"is of type {tensor.type}, which cannot be read as weights")


def _turned(piece: _Piece, recipe: Recipe) -> _Piece:
    """The tensor as it is once its last two dimensions have changed places, or those of each of its matrices."""
    tensor, matrix_rows = piece.planes[0], recipe.matrix_rows
    if matrix_rows and len(tensor.shape) == 2 and tensor.shape[0] % matrix_rows == 0:
        tensor = replace(tensor, shape=(tensor.shape[0] // matrix_rows, matrix_rows, tensor.shape[1]))
    if len(tensor.shape) < 2 or len(piece.planes) > 1 or tensor.scales or tensor.element_type.block_elements > 1:
        raise _FaultError(
            f"is {piece.format} of {list(tensor.shape)}, expected a matrix of floats, as it is transposed"
        )
    *outer, columns, rows = tensor.shape
    return _Piece(piece.format, (replace(tensor, shape=(*outer, rows, columns)),))


def _integers(numbers: StoredTensor, scales: StoredTensor, zeros: StoredTensor | None, columns: int) -> _Piece:
    found = integer_planes(numbers, scales, zeros, columns)
    if found is None:
        planes = [tensor for tensor in (numbers, scales, zeros) if tensor is not None]
        shapes = ", ".join(f"{list(tensor.shape)} {tensor.type}" for tensor in planes)
        raise _FaultError(f"has packed integers, scales and zeros of {shapes}, which are no {columns} columns")
    return _Piece(str(found[0]), found[1])


def _find_planes(numbers: StoredTensor, scales: StoredTensor, biases: StoredTensor | None, columns: int) -> _Piece:
    if numbers.type not in ("U32", "U8") or not scales.shape or not columns:
        raise _FaultError(f"is of type {numbers.type} beside scales; quantised numbers are U32")
    rows = scales.num_elements // scales.shape[-1] if scales.shape[-1] else 0
    groups, bits = scales.shape[-1], 8 * numbers.size_bytes // max(1, rows * columns)
    shapes = f"numbers {list(numbers.shape)} {numbers.type} and scales {list(scales.shape)} {scales.type}"
    if not groups or columns % groups or numbers.size_bytes * 8 != rows * columns * bits:
        raise _FaultError(f"has {shapes}, which are not those of {columns} columns")
    if biases is not None and (biases.shape, biases.type) != (scales.shape, scales.type):
        raise _FaultError(f"has {shapes} but biases {list(biases.shape)} {biases.type}")
    group = columns // groups
    format = plane_format(bits * group, scales.type, has_biases=biases is not None, group=group)
    if format is None:
        with_biases = "biases" if biases is not None else "no biases"
        raise _FaultError(
            f"has {shapes} and {with_biases}: {bits} bits in groups of {group}, a quantisation that is not supported"
        )
    return _Piece(str(format), (numbers, scales) if biases is None else (numbers, scales, biases))

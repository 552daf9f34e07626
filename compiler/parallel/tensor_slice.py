"""Which rows and columns of a tensor a rank has, by what its axes count, and how they are read from whole files."""

from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from mlxr.compiler.artifact.weight_plan import Columns, Recipe, Rows, TensorSource
from mlxr.compiler.errors import PlanError
from mlxr.compiler.ir.division import Axes
from mlxr.compiler.spec.divide_counts import Range
from mlxr.compiler.spec.share import Share


@dataclass(frozen=True)
class TensorSlice:
    """A part of a tensor.

    Attributes:
        rows: rows [first, last) of a matrix, or elements of a vector; None: all.
        columns: likewise.
        tiles: of how many equal parts of the axis that is divided, in each of which the range is meant.
    """

    rows: Range | None = None
    columns: Range | None = None
    tiles: int = 1


WHOLE = TensorSlice()


def slice_of(axes: Axes, share: Share) -> TensorSlice:
    """The part of a tensor with these axes that a rank has."""
    if not share.is_divided:
        return WHOLE
    tiles = max((axis.tiles for axis in axes if axis is not None), default=1)
    rows, columns = (None if axis is None else axis.elements_of(share) for axis in (*axes, None, None)[:2])
    return TensorSlice(rows, columns, tiles)


def slice_source(source: TensorSource, rows: Range | None, columns: Range | None, tiles: int = 1) -> TensorSource:
    """The source of some rows and columns of a tensor.

    Args:
        source: the tensor; it may be a part itself.
        rows: which of its rows, or elements of a vector; None: all.
        columns: which of its columns, if it is a matrix; None: all.
        tiles: see `TensorSlice`.

    Raises:
        PlanError: the columns would divide a block of a quantised format, or files have the rows among others in a way
            that no recipe describes.
    """
    rows = None if rows == (0, source.shape[0] // tiles) else rows
    columns = None if columns == (0, source.shape[-1] // tiles) else columns
    shape = list(source.shape)
    if rows is not None:
        assert 0 <= rows[0] < rows[1] <= shape[0] // tiles, f"{source.name} has {shape[0]} rows, not {rows}"
        shape[0] = (rows[1] - rows[0]) * tiles
    if columns is not None:
        assert len(shape) == 2, f"{source.name} is a vector and has no columns"
        assert 0 <= columns[0] < columns[1] <= shape[1] // tiles, f"{source.name} has {shape[1]} columns, not {columns}"
        for tile in range(tiles):
            _check_blocks(source, (columns[0] + tile * shape[1] // tiles, columns[1] + tile * shape[1] // tiles))
        shape[1] = (columns[1] - columns[0]) * tiles

    def sliced(recipes: tuple[Recipe, ...]) -> tuple[Recipe, ...]:
        of_rows = (_tiled_rows_of(recipe, source, rows, tiles) for recipe in recipes)
        return tuple(_columns_of(recipe, source, columns, tiles) for recipe in of_rows)

    return replace(source, shape=tuple(shape), safetensors=sliced(source.safetensors), gguf=sliced(source.gguf))


def _check_blocks(source: TensorSource, columns: Range) -> None:
    block = source.format.block_elements
    if columns[0] % block or columns[1] % block:
        raise PlanError(
            f"{source.name}: a rank would have columns {columns[0]} to {columns[1]}, which are not whole blocks of "
            f"{block} in {source.format}; use another number of ranks, other shares, or another format for this tensor "
            "(weights.tensors)"
        )


def _columns_of(recipe: Recipe, source: TensorSource, columns: Range | None, tiles: int) -> Recipe:
    if columns is None:
        return recipe
    whole = recipe.columns or Columns(0, source.shape[1])
    assert whole.runs == 1, f"{source.name} is divided twice"
    stride = source.shape[1] // tiles if tiles > 1 else 0
    return replace(recipe, columns=Columns(whole.first + columns[0], whole.total, tiles, stride))


def _tiled_rows_of(recipe: Recipe, source: TensorSource, rows: Range | None, tiles: int) -> Recipe:
    """The recipe for the same rows of each tile."""
    if rows is None or tiles == 1:
        return _rows_of(recipe, source, rows)
    size = source.shape[0] // tiles
    parts = [_rows_of(recipe, source, (rows[0] + tile * size, rows[1] + tile * size)) for tile in range(tiles)]
    found = [part.rows for part in parts if part.rows is not None]
    steps = {after.start - before.start for before, after in pairwise(found)}
    alike = len({(part.counts, part.strides) for part in found}) == 1 and len(steps) == 1
    if recipe.stack > 1 or len(found) < tiles or not alike:
        raise PlanError(
            f"{source.name}: a rank would have {tiles} times {rows[1] - rows[0]} rows, not at equal distances "
            f"in files' {recipe.tensor}; use stages (pipeline)"
        )
    return replace(recipe, rows=Rows(found[0].start, (tiles, *found[0].counts), (*steps, *found[0].strides)))


def _rows_of(recipe: Recipe, source: TensorSource, rows: Range | None) -> Recipe:
    if rows is None:
        return recipe
    of_each = source.shape[0] // recipe.stack
    first, end = rows[0] // of_each, -(-rows[1] // of_each)
    whole = rows[0] % of_each == rows[1] % of_each == 0
    if not whole and end - first > 1:
        raise PlanError(
            f"{source.name}: a rank would have rows {rows[0]} to {rows[1]}, but files may have {recipe.stack} tensors "
            f"of {of_each} rows, and only whole ones or a part of a single one can be read; use another number of "
            "ranks, or other shares"
        )
    recipe = replace(recipe, first=recipe.first + first, stack=end - first) if recipe.stack > 1 else recipe
    if whole:
        return recipe
    part = _part_of(recipe.rows or Rows(0, (of_each,), (1,)), rows[0] - first * of_each, rows[1] - first * of_each)
    if part is None:
        raise PlanError(
            f"{source.name}: a rank would have rows {rows[0]} to {rows[1]}, which are not together in "
            f"files' {recipe.tensor}; use another number of ranks, or other shares"
        )
    return replace(recipe, rows=part)


def _part_of(rows: Rows, first: int, last: int) -> Rows | None:
    """Rows [first, last) of these rows; None if they are neither whole outer digits nor within one of them."""
    inner, stride = prod(rows.counts[1:]), rows.strides[0]
    digit = first // inner
    if first % inner == last % inner == 0 and (last - first > inner or inner == 1):
        return Rows(rows.start + digit * stride, ((last - first) // inner, *rows.counts[1:]), rows.strides)
    if last > (digit + 1) * inner:
        return None
    within = Rows(rows.start + digit * stride, rows.counts[1:], rows.strides[1:])
    return _part_of(within, first - digit * inner, last - digit * inner)

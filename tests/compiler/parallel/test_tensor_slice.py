"""Parts of tensors: the recipe of a part reads the rows and columns that NumPy selects from those of the whole."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxr.compiler.artifact import Columns, Recipe, Rows, TensorSource, WeightFormat
from mlxr.compiler.errors import PlanError
from mlxr.compiler.parallel.tensor_slice import slice_source


def source(shape, format="f32", **recipe):
    return TensorSource("layers.0.x", shape, (Recipe("x.{e}", **recipe),), (), WeightFormat(format))


def rows_read(part: TensorSource) -> list[tuple[str, int]]:
    """The tensor and the row in it of each row."""
    (recipe,) = part.safetensors
    of_each = part.shape[0] // recipe.stack
    places = np.arange(of_each)
    if recipe.rows is not None:
        digits = np.indices(recipe.rows.counts).reshape(len(recipe.rows.counts), -1)
        places = recipe.rows.start + np.array(recipe.rows.strides) @ digits
    assert len(places) == of_each
    return [(name, int(row)) for name in recipe.tensors for row in places]


@st.composite
def parts(draw):
    counts = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    strides = tuple(draw(st.integers(1, 30)) for _ in counts)
    rows = draw(st.one_of(st.none(), st.just(Rows(draw(st.integers(0, 9)), counts, strides))))
    size = int(np.prod(counts)) * (stack := draw(st.integers(1, 3)))
    first = draw(st.integers(0, size - 1))
    whole = source((size, 8), rows=rows, stack=stack, first=draw(st.integers(0, 2)), add=draw(st.sampled_from((0, 1))))
    return whole, first, draw(st.integers(first + 1, size))


@given(parts())
def test_rows_of_a_part_are_those_of_the_whole(case) -> None:
    whole, first, last = case
    recipe = whole.safetensors[0]
    outer = recipe.rows.counts if recipe.rows else (whole.shape[0] // recipe.stack,)
    try:
        part = slice_source(whole, (first, last), None)
    except PlanError:
        sizes = [int(np.prod(outer[digit:])) for digit in range(len(outer))]  # of one tensor, of one outer digit, ...
        crossed = next(size for size in sizes if first // size != (last - 1) // size)
        assert first % crossed or last % crossed
        return
    assert part.shape == (last - first, 8) and part.safetensors[0].add == recipe.add
    assert rows_read(part) == rows_read(whole)[first:last]


@pytest.mark.parametrize(
    ("rows", "part"),
    [
        ((8, 24), Rows(8, (2, 2, 4), (8, 1, 2))),  # heads 1 and 2 of 4
        ((8, 16), Rows(8, (2, 4), (1, 2))),
        ((12, 16), Rows(9, (4,), (2,))),
        ((0, 32), Rows(0, (4, 2, 4), (8, 1, 2))),
    ],
)
def test_heads_whose_pairs_lie_side_by_side(rows, part) -> None:
    heads = source((32, 8), rows=Rows(0, (4, 2, 4), (8, 1, 2)))
    assert slice_source(heads, rows, None).safetensors[0].rows == part


def test_experts_in_tensors_of_their_own() -> None:
    part = slice_source(source((20, 8), stack=5), (8, 16), None)
    assert part.safetensors[0].tensors == ("x.2", "x.3") and part.safetensors[0].rows is None
    again = slice_source(part, (5, 7), (2, 8))
    assert again == TensorSource(
        "layers.0.x", (2, 6), (Recipe("x.{e}", first=3, rows=Rows(1, (2,), (1,)), columns=Columns(2, 8)),), ()
    )


def test_columns_and_vectors() -> None:
    part = slice_source(source((4, 96), "q8_0"), None, (32, 96))
    assert (part.shape, part.safetensors[0].columns) == ((4, 64), Columns(32, 96))
    assert slice_source(part, (1, 3), (32, 64)).safetensors[0].columns == Columns(64, 96)
    assert slice_source(source((12,)), (4, 6), None).safetensors[0].rows == Rows(4, (2,), (1,))
    assert slice_source(whole := source((4, 96), "q4_k"), (0, 4), (0, 96)) == whole


def test_the_same_part_of_each_tile() -> None:
    """Three tiles of four rows; elsewhere rows are in another order, or columns are the third of a file's."""
    whole = source((12, 96), "q8_0")
    assert slice_source(whole, (1, 3), None, 3) == replace(
        whole, shape=(6, 96), safetensors=(Recipe("x.{e}", rows=Rows(1, (3, 2), (4, 1))),)
    )
    assert slice_source(whole, (0, 4), None, 3) == whole
    interleaved = source((12, 8), rows=Rows(2, (6, 2), (3, 1)))
    assert slice_source(interleaved, (2, 4), None, 3).safetensors[0].rows == Rows(5, (3, 2), (6, 1))
    columns = slice_source(source((2, 384), "q8_0"), None, (32, 96), 3)
    assert (columns.shape, columns.safetensors[0].columns) == ((2, 192), Columns(32, 384, 3, 128))
    assert [run.first for run in Columns(32, 384, 3, 128).each] == [32, 160, 288]
    with pytest.raises(PlanError, match="columns 16 to 32, which are not whole blocks of 32"):
        slice_source(source((2, 384), "q8_0"), None, (16, 32), 4)
    with pytest.raises(PlanError, match=r"4 times 2 rows, not at equal distances in files' x\.\{e\}; use stages"):
        slice_source(source((12, 8), rows=Rows(0, (2, 2, 3), (50, 20, 1))), (1, 3), None, 4)


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        (None, (0, 48), r"layers\.0\.x: .*columns 0 to 48, .* blocks of 32 in q8_0; use another number of ranks"),
        ((2, 6), None, r"layers\.0\.x: .*rows 2 to 6, but files may have 3 tensors of 4 rows"),
        ((5, 7), None, r"layers\.0\.x: .*rows 5 to 7, which are not together in files' x"),
    ],
)
def test_what_no_recipe_describes_is_refused(rows, columns, message) -> None:
    whole = source((12, 96), "q8_0", stack=3, rows=Rows(0, (2, 2), (1, 4)))
    with pytest.raises(PlanError, match=message):
        slice_source(whole, rows, columns)

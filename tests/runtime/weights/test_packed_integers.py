"""Packed integers as compressed-tensors wrote them mean the numbers that it reads."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.artifact import Recipe, TensorSource, WeightFormat
from mlxr.compiler.artifact.weight_plan import Columns, Rows
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.open_tensor import TensorError, open_tensor
from mlxr.runtime.weights.open_weights import open_weights
from mlxr.runtime.weights.packed_integers import MadePlane
from mlxr.runtime.weights.tensor_rows import TensorRows
from mlxr_tests.packed_integers import COLUMNS, FORMS, RECORDED, ROWS

FORMATS = {
    "as Kimi K2": "affine4_g32_bf16",
    "zeros": "affine4_g128_f32",
    "rows of 8 bits": "affine8_g128_bf16",
    "8 bits, zeros": "affine8_g64_f32",
    "rows, zeros": "affine4_g128_f32",
    "3 bits": "affine3_g32_f32",
}


def opened(form: str, recipe: Recipe, shape: tuple[int, int], path: Path = RECORDED) -> TensorRows:
    part = TensorSource("x", shape, (recipe,), (recipe,), WeightFormat(FORMATS[form]))
    return open_tensor(MappedWeights(open_weights(path)), part)


@pytest.mark.parametrize("form", FORMS)
def test_numbers(form: str) -> None:
    tensor = opened(form, Recipe(f"{form}.weight"), (ROWS, COLUMNS))
    assert tensor.format == FORMATS[form]
    numbers, theirs = mx.array(tensor.numbers(0, ROWS)), mx.load(str(RECORDED))[f"{form}.numbers"]
    if theirs.dtype == mx.float32:
        assert np.allclose(numbers, theirs, rtol=1e-6, atol=1e-6)
    else:  # theirs are rounded
        assert mx.array_equal(numbers.astype(theirs.dtype), theirs)


@pytest.mark.parametrize("form", FORMS)
def test_some_rows_and_columns(form: str) -> None:
    """In another order, and from the middle of a group of the file."""
    whole = opened(form, Recipe(f"{form}.weight"), (ROWS, COLUMNS)).numbers(0, ROWS)
    recipe = Recipe(f"{form}.weight", rows=Rows(1, (2, 4), (1, 2)), columns=Columns(128, COLUMNS))
    some = opened(form, recipe, (8, 128))
    wanted = whole[[1, 3, 5, 7, 2, 4, 6, 8], 128:]
    assert np.array_equal(some.numbers(0, 8), wanted) and np.array_equal(some.numbers(3, 6), wanted[3:6])


def test_groups_that_are_each_several_of_the_format(tmp_path: Path) -> None:
    """Twice the columns, the second half with other scales: two groups of 256, of which the format makes four."""
    form, held = "rows, zeros", mx.load(str(RECORDED))
    parts = {part: held[f"{form}.{part}"] for part in ("weight_packed", "weight_scale", "weight_zero_point")}
    second = parts | {"weight_scale": 2 * parts["weight_scale"]}
    path = tmp_path / "model.safetensors"
    twice = {f"{form}.{part}": mx.concatenate([parts[part], second[part]], axis=1) for part in parts}
    mx.save_safetensors(str(path), twice)
    numbers = opened(form, Recipe(f"{form}.weight"), (ROWS, 2 * COLUMNS), path).numbers(0, ROWS)
    one = opened(form, Recipe(f"{form}.weight"), (ROWS, COLUMNS)).numbers(0, ROWS)
    assert np.allclose(numbers, np.concatenate([one, 2 * one], axis=1), rtol=1e-6, atol=1e-6)


def test_integers_that_mean_0_lie_in_two_words() -> None:
    numbers = [(row + 1) % 8 for row in range(12)]
    words = np.array([sum(number << 3 * row for row, number in enumerate(numbers))], "<u8")
    plane: Any = SimpleNamespace(zeros=SimpleNamespace(shape=(2, 1)), bits=3)
    source: Any = SimpleNamespace(rows=lambda zeros: words.view(np.uint8))
    assert MadePlane._zeros(plane, source, np.arange(12), np.array([0])).ravel().tolist() == numbers


def test_tensors_that_do_not_fit(tmp_path: Path) -> None:
    held = mx.load(str(RECORDED))
    tensors = {
        f"zeros.{part}": held[f"zeros.{part}"] for part in ("weight_packed", "weight_scale", "weight_zero_point")
    }
    path = tmp_path / "model.safetensors"
    for part, wrong in (("weight_scale", mx.ones((ROWS, 3))), ("weight_zero_point", mx.zeros((3, 2), mx.int32))):
        mx.save_safetensors(str(path), tensors | {f"zeros.{part}": wrong})
        with pytest.raises(
            TensorError, match=r"has packed integers, scales and zeros of \[10, 32\] I32, .* are no 256"
        ):
            opened("zeros", Recipe("zeros.weight"), (ROWS, COLUMNS), path)

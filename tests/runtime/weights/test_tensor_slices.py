"""Reading some rows or columns of a tensor: the numbers, the bytes that are read, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from mlxr.compiler.artifact import Columns, DType, Recipe, Rows, TensorSource, WeightFormat, WeightPlan
from mlxr.compiler.errors import WeightsError
from mlxr.runtime.weights import load_weights, open_weights
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.open_tensor import open_tensor
from mlxr.runtime.weights.tensor_rows import TensorRows, selected
from mlxr_tests.format_planes import numbers_of, random_planes

ROWS, COLUMNS = 12, 512
PERMUTED = Rows(0, (3, 2, 2), (4, 1, 2))
IN_FILE = [head + half + 2 * pair for head in (0, 4, 8) for half in (0, 1) for pair in (0, 1)]
"""The file's row of each row of the model, with heads of four rows whose halves the file interleaves."""


def part(shape: tuple[int, ...], recipe: Recipe, format: str = "f32") -> TensorSource:
    return TensorSource("a", shape, (recipe,), (recipe,), WeightFormat(format))


def opened(path: Path, source: TensorSource) -> tuple[TensorRows, MappedWeights]:
    mapped = MappedWeights(open_weights(path))
    return open_tensor(mapped, source), mapped


def write(folder: Path, format: str, rows: int = ROWS) -> tuple[Path, np.ndarray[Any, Any]]:
    """A file with a random matrix `a.weight` in this format, and its numbers."""
    kind = WeightFormat(format)
    planes = random_planes(np.random.default_rng(1), kind, (rows, COLUMNS), 1.0)
    if len(kind.planes) == 1:
        path = folder / "a.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tensor("a.weight", planes[0], raw_dtype=gguf.GGMLQuantizationType[format.upper()])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    else:
        path = folder / "a.safetensors"
        types = {"f16": np.float16, "u8": np.uint8}
        stored = [np.dtype(types.get(str(plane.dtype), np.uint32)) for plane in kind.planes]
        names = ("a.weight", "a.scales", "a.biases")
        save_file({n: p.view(t) for n, p, t in zip(names, planes, stored, strict=False)}, path)
    return path, numbers_of(kind, planes, COLUMNS)


@pytest.mark.parametrize("format", ["f32", "bf16", "q8_0", "q4_k", "affine4_g64_f16", "affine3_g32_f16", "mxfp4_mlx"])
def test_parts_are_those_of_the_whole_and_no_other_bytes_are_read(tmp_path: Path, format: str) -> None:
    path, whole = write(tmp_path, format)
    row_bytes = WeightFormat(format).row_bytes(COLUMNS)
    first, last = 256, COLUMNS
    for rows, wanted in ((None, list(range(ROWS))), (Rows(5, (4,), (1,)), [5, 6, 7, 8]), (PERMUTED, IN_FILE)):
        recipe = Recipe("a.weight", rows=rows)
        tensor, mapped = opened(path, part((len(wanted), COLUMNS), recipe, format))
        np.testing.assert_array_equal(tensor.numbers(0, len(wanted)), whole[wanted])
        assert mapped.read_bytes == len(wanted) * row_bytes
        assert tensor.is_plain == (rows is not PERMUTED)
        recipe = replace(recipe, columns=Columns(first, COLUMNS))
        tensor, mapped = opened(path, part((len(wanted), last - first), recipe, format))
        np.testing.assert_array_equal(tensor.numbers(1, 3), whole[wanted[1:3], first:last])
        tensor.forget(1, 3)
        assert mapped.read_bytes == 2 * row_bytes * (last - first) // COLUMNS and not tensor.is_plain
        planes = [tensor.plane_rows(plane, 1, 3) for plane in range(len(tensor.planes))]
        assert all(plane.flags.c_contiguous for plane in planes)
        found = numbers_of(WeightFormat(format), planes, last - first)
        np.testing.assert_array_equal(found, whole[wanted[1:3], first:last])


@pytest.mark.parametrize("format", ["f32", "q8_0", "affine4_g64_f16"])
def test_runs_of_columns(tmp_path: Path, format: str) -> None:
    """The middle of each half, side by side."""
    path, whole = write(tmp_path, format)
    recipe = Recipe("a.weight", rows=PERMUTED, columns=Columns(64, COLUMNS, 2, COLUMNS // 2))
    tensor, mapped = opened(path, part((len(IN_FILE), 256), recipe, format))
    wanted = whole[IN_FILE][:, [*range(64, 192), *range(320, 448)]]
    np.testing.assert_array_equal(tensor.numbers(1, 3), wanted[1:3])
    assert mapped.read_bytes == 2 * WeightFormat(format).row_bytes(256) and not tensor.is_plain
    planes = [tensor.plane_rows(plane, 0, 4) for plane in range(len(tensor.planes))]
    assert all(plane.flags.c_contiguous for plane in planes)
    np.testing.assert_array_equal(numbers_of(WeightFormat(format), planes, 256), wanted[:4])


@pytest.mark.parametrize("format", ["q8_0", "affine4_g64_f16"])
def test_columns_that_divide_blocks_are_numbers_but_no_blocks(tmp_path: Path, format: str) -> None:
    path, whole = write(tmp_path, format)
    tensor, mapped = opened(path, part((ROWS, 176), Recipe("a.weight", columns=Columns(80, COLUMNS))))
    np.testing.assert_array_equal(tensor.numbers(2, 5), whole[2:5, 80:256])
    assert mapped.read_bytes == 3 * WeightFormat(format).row_bytes(192)
    with pytest.raises(WeightsError, match=rf"'a\.weight' \(a\) is {format}, whose blocks .* columns 80 to 256"):
        tensor.plane_rows(0, 0, 1)
    loaded = load_weights([WeightPlan("w", (ROWS, 176), DType.F32, (part((ROWS, 176), tensor.recipe),))], [], path)
    np.testing.assert_array_equal(np.array(loaded["w"]), whole[:, 80:256])


def test_some_experts_of_a_stack(tmp_path: Path) -> None:
    experts = np.random.default_rng(2).standard_normal((4, 3, 8), dtype=np.float32)
    save_file({f"e.{e}.weight": expert for e, expert in enumerate(experts)}, tmp_path / "a.safetensors")
    for count, plain in ((2, False), (1, True)):
        recipe = Recipe("e.{e}.weight", stack=count, first=1)
        tensor, mapped = opened(tmp_path / "a.safetensors", part((3 * count, 8), recipe))
        np.testing.assert_array_equal(tensor.numbers(0, 3 * count), experts[1 : 1 + count].reshape(-1, 8))
        assert mapped.read_bytes == count * experts[0].nbytes and tensor.is_plain == plain
        columns = replace(recipe, columns=Columns(2, 8))
        tensor, _ = opened(tmp_path / "a.safetensors", part((3 * count, 4), columns))
        np.testing.assert_array_equal(tensor.numbers(1, 3), experts[1, 1:3, 2:6])


def test_elements_of_a_vector(tmp_path: Path) -> None:
    numbers = np.random.default_rng(3).standard_normal(64, dtype=np.float32)
    blocks = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType.Q8_0)
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_tensor("float", numbers)
    writer.add_tensor("blocks", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for name, whole in (("float", numbers), ("blocks", gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.Q8_0))):
        recipe = Recipe(name, rows=Rows(40, (3, 2, 2), (4, 1, 2)), add=1.0)
        tensor, _ = opened(tmp_path / "a.gguf", part((12,), recipe))
        expected = whole[40:52][IN_FILE] + np.float32(1)
        np.testing.assert_array_equal(tensor.numbers(0, 12)[:, 0], expected)
        np.testing.assert_array_equal(tensor.numbers(5, 9)[:, 0], expected[5:9])


def test_a_rank_checks_the_whole_model(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    numbers = np.arange(32, dtype=np.float32).reshape(4, 8)
    rest = {"b": np.zeros((2, 8), np.float32)}
    save_file({"a": numbers, **rest}, path)
    recipe = Recipe("a", rows=Rows(2, (2,), (1,)), columns=Columns(4, 8))
    own = [WeightPlan("a", (2, 4), DType.F32, (part((2, 4), recipe),))]
    with pytest.raises(WeightsError, match="'a' has 4 rows, the model 2"):
        load_weights(own, [], path)
    second = replace(part((2, 8), Recipe("b")), name="b")
    model = [
        WeightPlan("a", (4, 8), DType.F32, (part((4, 8), Recipe("a")),)),
        WeightPlan("b", (2, 8), DType.F32, (second,)),
    ]
    loaded = load_weights(own, [], path, all_weights=model)
    assert set(loaded) == {"a"}
    np.testing.assert_array_equal(np.array(loaded["a"]), numbers[2:, 4:])
    for tensors, message in (
        ({"a": numbers}, r"lacks 1 of the model's 2 tensors: 'b' \(b\)"),
        ({"a": numbers[:, :6].copy(), **rest}, r"'a' \(a\) got \[4, 6\], expected \[4, 8\]"),
        ({"a": numbers, **rest, "c": numbers}, "no use for: 'c'"),
    ):
        save_file(tensors, path)
        with pytest.raises(WeightsError, match=message):
            load_weights(own, [], path, all_weights=model)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 30)), min_size=1, max_size=4), st.data())
def test_rows_of_a_selection(digits: list[tuple[int, int]], data: st.DataObject) -> None:
    counts, strides = zip(*digits, strict=True)
    every = (7 + np.tensordot(strides, np.indices(counts), 1)).reshape(-1)
    first = data.draw(st.integers(0, len(every) - 1))
    last = data.draw(st.integers(first + 1, len(every)))
    np.testing.assert_array_equal(np.arange(600)[selected(Rows(7, counts, strides), first, last)], every[first:last])

"""Matrices of heads that files have one below the other, and that are transposed each by itself, in all formats."""

from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.artifact import Recipe, Rows, TensorSource, WeightFormat
from mlxr.compiler.artifact.weight_plan import Columns
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.open_tensor import TensorError, open_tensor
from mlxr.runtime.weights.open_weights import open_weights

HEADS, NOPE, V, RANK = 3, 8, 24, 64
NUMBERS = np.random.default_rng(5).standard_normal((HEADS * (NOPE + V), RANK)).astype(np.float32)
RECIPE = Recipe(
    "kv_b.weight",
    rows=Rows(0, (HEADS, RANK), (RANK, 1)),
    columns=Columns(0, NOPE + V),
    is_transposed=True,
    matrix_rows=NOPE + V,
)
PART = TensorSource("k_b", (HEADS * RANK, NOPE), (RECIPE,), (RECIPE,), WeightFormat.F16)


def turned(numbers: np.ndarray) -> np.ndarray:
    """The keys' matrices of all heads, [HEADS * RANK, NOPE]."""
    return numbers.reshape(HEADS, NOPE + V, RANK)[:, :NOPE].swapaxes(1, 2).reshape(-1, NOPE)


def read(path: Path) -> np.ndarray:
    tensor = open_tensor(MappedWeights(open_weights(path)), PART)
    whole = tensor.numbers(0, HEADS * RANK)
    assert np.array_equal(whole[50:150], tensor.numbers(50, 150))
    return whole


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q5_1"])
def test_gguf(kind: str, tmp_path: Path) -> None:
    type_ = gguf.GGMLQuantizationType[kind]
    stored = gguf.quants.quantize(NUMBERS, type_)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "deepseek2")
    writer.add_tensor("kv_b.weight", stored, raw_dtype=type_)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    assert np.allclose(read(tmp_path / "x.gguf"), turned(gguf.quants.dequantize(stored, type_)), rtol=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
def test_planes(bits: int, tmp_path: Path) -> None:
    planes = mx.quantize(mx.array(NUMBERS), 32, bits)
    names = ("weight", "scales", "biases")
    mx.save_safetensors(
        str(tmp_path / "model.safetensors"), {f"kv_b.{name}": plane for name, plane in zip(names, planes, strict=True)}
    )
    want = np.array(mx.dequantize(*planes, group_size=32, bits=bits))
    assert np.allclose(read(tmp_path / "model.safetensors"), turned(want), rtol=1e-5, atol=1e-6)


def test_rows_that_are_no_whole_matrices_are_refused(tmp_path: Path) -> None:
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {"kv_b.weight": mx.array(NUMBERS[:-1])})
    with pytest.raises(TensorError, match=r"got \[64, 95\]"):
        read(tmp_path / "model.safetensors")

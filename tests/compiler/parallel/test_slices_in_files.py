"""Parts of the tensors of whole models, in both kinds of file: their numbers, and that no others are read."""

from pathlib import Path

import numpy as np
import pytest

from mlxr.compiler.artifact import TensorSource
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.parallel.tensor_slice import slice_source
from mlxr.loading.imported_model import import_model
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.open_tensor import open_tensor
from mlxr.runtime.weights.open_weights import open_weights
from mlxr_tests.family_gguf import write_gguf
from mlxr_tests.family_oracle import EXACT

CASES = ("llama", "phi3", "mixtral", "gpt_oss", "olmo2")
"""Permuted queries and keys; joined ones; experts as tensors of their own, as one, and with gate and up in turn; norms
of all queries and of all keys."""


@pytest.fixture(scope="module", params=CASES)
def folder(request, tmp_path_factory) -> tuple[str, Path, Path]:
    """The name of a family, and a tiny model of it as GGUF file and as folder."""
    folder = tmp_path_factory.mktemp("model")
    return request.param, write_gguf(request.param, folder), folder / "hf"


def whole_tensors(path: Path) -> tuple[MappedWeights, dict[str, TensorSource], int]:
    spec, weights = import_model(path, EXACT)
    plan = compile_spec(spec, targets=("cpu",)).artifact.plan
    parts = {part.name: part for weight in plan.weights for part in weight.parts}
    return MappedWeights(open_weights(weights)), parts, spec.model.attention.head_dim


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_parts_of_every_tensor_of_a_model(folder: tuple[str, Path, Path], kind: str) -> None:
    family, gguf, hf = folder
    mapped, parts, head_dim = whole_tensors(gguf if kind == "gguf" else hf)
    experts = 5
    for name, whole in parts.items():
        numbers = open_tensor(mapped, whole).numbers(0, whole.shape[0])
        role = name.rpartition(".")[2].partition("_")[0]
        unit = whole.shape[0] // experts if ".experts." in name else head_dim if role in ("q", "k", "v") else 1
        if unit == whole.shape[0]:
            continue
        count = whole.shape[0] // unit
        for first, last in ((0, count // 2), (count // 2, count), (1, 2)):
            rows = (first * unit, last * unit)
            columns = (3, whole.shape[1] - 4) if len(whole.shape) == 2 else None
            for taken in {None, columns}:
                part = open_tensor(mapped, slice_source(whole, rows, taken))
                expected = numbers[slice(*rows), slice(*(taken or (None,)))]
                before = mapped.read_bytes
                np.testing.assert_array_equal(part.numbers(0, len(expected)), expected, err_msg=f"{family} {name}")
                assert mapped.read_bytes - before == expected.nbytes, name

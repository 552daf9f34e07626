"""Weights as the kernels of the metal target read them: the file's own bytes at the places that the layout names."""

import sys

import numpy as np
import pytest

from mlxr.compiler.artifact import part_places
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import WeightsError
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.loading.imported_model import import_model
from mlxr.runtime.weights.load_weights import load_buffers, load_weights
from mlxr.runtime.weights.mapped_weights import MappedWeights
from mlxr.runtime.weights.open_tensor import open_tensor
from mlxr.runtime.weights.open_weights import open_weights
from mlxr_tests.format_planes import numbers_of
from mlxr_tests.storyteller import GOLDEN

Q4_K_M, Q5_0 = GOLDEN / "tiny-Q4_K_M.gguf", GOLDEN / "tiny-Q5_0.gguf"


def plan_of(path):
    spec, _ = import_model(path, ImportOptions())
    return compile_spec(spec, targets=("metal",)).artifact.plan


@pytest.mark.parametrize("slab", [1 << 20, 1 << 10], ids=["whole", "in pieces"])
@pytest.mark.parametrize("path", [Q4_K_M, Q5_0], ids=lambda p: p.stem)
def test_bytes_are_those_of_the_file(monkeypatch, path, slab):
    monkeypatch.setattr(sys.modules["mlxr.runtime.weights.load_weights"], "SLAB_ELEMENTS", slab)
    plan, file = plan_of(path), open_weights(path)
    calls = []
    buffers = load_buffers(plan.weights, plan.ignored_tensors, file, lambda done, total: calls.append((done, total)))
    assert calls[-1] == (plan.first.memory.weights_bytes,) * 2 and calls == sorted(calls)
    assert sum(np.array(buffer).nbytes for buffer in buffers.values()) == plan.first.memory.weights_bytes
    quantised = 0
    for weight in plan.weights:
        if weight.layout.dtype != "u8":
            assert buffers[weight.name].shape == weight.shape
            continue
        buffer, columns = np.array(buffers[weight.name]), weight.shape[1]
        places = part_places([(part.format, part.shape[0]) for part in weight.parts], columns)
        for part, (offset,) in zip(weight.parts, places, strict=True):
            rows = open_tensor(MappedWeights(file), part).plane_rows(0, 0, part.shape[0])
            assert (buffer[offset : offset + rows.nbytes] == rows.reshape(-1)).all(), part.name
            quantised += 1
    assert quantised > 10


def test_numbers_of_the_bytes_are_those_that_load_weights_gives():
    plan = plan_of(Q4_K_M)
    buffers = load_buffers(plan.weights, plan.ignored_tensors, Q4_K_M)
    numbers = load_weights(plan.weights, plan.ignored_tensors, Q4_K_M)
    formats = set()
    for weight in (w for w in plan.weights if w.layout.dtype == "u8"):
        buffer, columns = np.array(buffers[weight.name]), weight.shape[1]
        for segment in weight.layout.segments:
            size = segment.rows * segment.format.row_bytes(columns)
            rows = buffer[segment.offsets[0] : segment.offsets[0] + size].reshape(segment.rows, -1)
            want = np.array(numbers[weight.name])[segment.first_row : segment.end_row]
            assert (numbers_of(segment.format, [rows], columns) == want).all(), weight.name
            formats.add(str(segment.format))
    assert formats == {"q4_k", "q6_k"}


def test_another_format_in_the_file_is_refused():
    plan = plan_of(Q4_K_M)
    with pytest.raises(WeightsError, match=r"q4_k|Q4_K"):
        load_buffers(plan.weights, plan.ignored_tensors, Q5_0)

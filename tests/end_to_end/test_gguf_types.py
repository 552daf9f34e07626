"""A tiny model in every type that llama.cpp's quantiser wrote it in, read as it is by Metal kernels."""

import numpy as np
import pytest

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.imported_model import import_model
from mlxr_tests.storyteller import GOLDEN

TYPES = [path.stem.removeprefix("tiny-") for path in sorted(GOLDEN.glob("tiny-*.gguf"))]


def relative_error(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("kind", TYPES)
def test_logits(kind: str) -> None:
    """Those of the exact numbers to fp32 rounding; llama.cpp's within what its 8-bit activations cost."""
    path = GOLDEN / f"tiny-{kind}.gguf"
    recorded = np.load(GOLDEN / "tiny-llamacpp.npz")
    spec, _ = import_model(path, ImportOptions())
    cache = spec.cache.model_copy(update={"dtype": "f32"})
    spec = spec.model_copy(update={"activation_dtype": "f32", "cache": cache})
    artifact = compile_spec(spec, targets=("metal",)).artifact
    tokens = recorded["tokens"].tolist()
    found = {}
    for host in ("sim", "reference"):
        model = mlxr.load(artifact, path, host=host)
        prompt = model.logits(tokens)
        answer = model.start([tokens[:20]], max_tokens=3, ignore_eos=True).finish()[0]
        found[host] = (prompt, answer.token_ids)
    assert relative_error(found["sim"][0], found["reference"][0]) < 2e-5
    assert found["sim"][1] == found["reference"][1]
    assert relative_error(found["sim"][0], recorded[f"logits_{kind}"]) < 0.05

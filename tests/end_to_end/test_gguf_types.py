"""A tiny model in every type that llama.cpp's quantiser wrote it in, read as it is by Metal kernels."""

import numpy as np
import pytest

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.importers.imported import ImportOptions
from mlxr.loading.imported_model import import_model
from mlxr_tests.storyteller import GOLDEN


@pytest.fixture(autouse=True)
def _compiled_as_for_users() -> None:
    """Not as for users, unlike elsewhere in this folder: a kernel is compiled for a few tokens."""


TYPES = [path.stem.removeprefix("tiny-") for path in sorted(GOLDEN.glob("tiny-*.gguf"))]


def relative_error(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def load(kind: str, host: str) -> tuple[mlxr.Model, list[int]]:
    """The model in f32 but for its weights, and the tokens of the recorded logits."""
    path = GOLDEN / f"tiny-{kind}.gguf"
    spec, _ = import_model(path, ImportOptions())
    cache = spec.cache.model_copy(update={"dtype": "f32"})
    spec = spec.model_copy(update={"activation_dtype": "f32", "cache": cache})
    artifact = compile_spec(spec, targets=("metal",)).artifact
    return mlxr.load(artifact, path, host=host), np.load(GOLDEN / "tiny-llamacpp.npz")["tokens"].tolist()


@pytest.mark.parametrize("kind", TYPES)
def test_logits_are_llama_cpps(kind: str) -> None:
    """Within what its 8-bit activations cost."""
    model, tokens = load(kind, "reference")
    assert relative_error(model.logits(tokens), np.load(GOLDEN / "tiny-llamacpp.npz")[f"logits_{kind}"]) < 0.05


@pytest.mark.long  # the kernels of formats are compared one by one, whole models by test_storyteller.py
@pytest.mark.parametrize("kind", TYPES)
def test_kernels_give_the_references_logits(kind: str) -> None:
    """Those of the exact numbers to fp32 rounding."""
    prompts, answers = [], []
    for host in ("sim", "reference"):
        model, tokens = load(kind, host)
        prompts.append(model.logits(tokens))
        answers.append(model.start([tokens[:20]], max_tokens=3, ignore_eos=True).finish()[0].token_ids)
    assert relative_error(*prompts) < 2e-5
    assert answers[0] == answers[1]

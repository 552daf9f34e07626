"""Heads of other files (EAGLE-3): what they guess is what the reference recorded, of every kind of file."""

import itertools
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from mlxr.compiler.driver import compile_spec
from mlxr.loading.eagle_head import EagleHead, eagle_head, with_eagle_spec
from mlxr.loading.imported_model import import_model
from mlxr.loading.options import LoadOptions
from mlxr.runtime.engine.choose_arena import Head
from mlxr.runtime.weights.open_weights import open_weights
from mlxr_tests import eagle_gguf
from mlxr_tests import eagle_models as cases
from mlxr_tests.family_oracle import EXACT, relative_error
from mlxr_tests.few import covering, few
from mlxr_tests.guesses import guessed_logits

RECORDED = cases.load_recorded()
TOLERANCE = 5e-6


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cases.save_target(tmp_path_factory.mktemp("target"))


def found(path: Path) -> EagleHead:
    head = eagle_head(LoadOptions(draft=path))
    assert head is not None
    return head


def guesses(target: Path, draft: Path, host: str, cut: int | None = None) -> npt.NDArray[np.float32]:
    head = found(draft)
    spec, weights = import_model(target, EXACT)
    spec = with_eagle_spec(spec, head)
    model, own = (compile_spec(s).artifact for s in (spec, spec.model_copy(update={"output": "guesses"})))
    file = head.beside(open_weights(weights), spec)
    return guessed_logits(model, file, Head(own, file, head.ids(spec)), host, cases.prompt(), cases.NUM_GUESSES, cut)


EVERY = list(itertools.product(cases.HEADS, ["reference", "cpu", "sim"], [None, 5]))
SHORT = covering([case for case in EVERY if case[1] != "sim"], lambda case: case)


@pytest.mark.parametrize(("case", "host", "cut"), few(EVERY, SHORT))
def test_guesses_are_recorded_ones(target: Path, tmp_path: Path, case: str, host: str, cut: int | None) -> None:
    logits = guesses(target, cases.save_head(cases.HEADS[case], tmp_path), host, cut)
    assert relative_error(logits, RECORDED[case]) < TOLERANCE


def test_a_gguf_file(target: Path, tmp_path: Path) -> None:
    logits = guesses(target, eagle_gguf.save_head("eagle", tmp_path / "head.gguf"), "reference")
    assert relative_error(logits, RECORDED["eagle"]) < TOLERANCE

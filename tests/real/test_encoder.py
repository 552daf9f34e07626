"""all-MiniLM-L6-v2: its vectors are those of transformers, and similarities those that sentence-transformers prints."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import mlxr
from mlxr_tests.encoder_models import Array, decoded
from mlxr_tests.real_files import MINILM, real_folder

RECORDED = json.loads((Path(__file__).with_name("data") / "all-minilm-l6-v2.json").read_text(encoding="utf-8"))
TEXTS, VECTORS = RECORDED["texts"], np.stack([decoded(vector) for vector in RECORDED["vectors"]])
# https://sbert.net/docs/quickstart.html: of the first three texts
KNOWN = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]


@pytest.fixture(scope="module", params=["fast", "exact"])
def model(request: pytest.FixtureRequest) -> Iterator[mlxr.Model]:
    """The encoder, as users load it, and in f32."""
    with mlxr.load(real_folder(MINILM), host="cpu", changes=mlxr.Changes(compute=request.param)) as loaded:
        yield loaded


def test_vectors_are_those_of_transformers(model: mlxr.Model) -> None:
    assert model.default_pooling() == "mean"
    vectors = model.embed(TEXTS)
    np.testing.assert_allclose(vectors, VECTORS, atol=1e-5 if model.artifact.spec.compute == "exact" else 1e-3)
    np.testing.assert_allclose(vectors @ vectors.T, VECTORS @ VECTORS.T, atol=1e-3)


def test_similarities_are_those_that_are_known(model: mlxr.Model) -> None:
    vectors: Array = model.embed(TEXTS[:3])
    np.testing.assert_allclose(vectors @ vectors.T, KNOWN, atol=2e-4)


def test_texts_do_not_depend_on_their_company(model: mlxr.Model) -> None:
    alone = np.concatenate([model.embed([text]) for text in TEXTS])
    np.testing.assert_allclose(model.embed(TEXTS * 3), np.concatenate([alone] * 3), atol=1e-6)
    with pytest.raises(mlxr.PromptTooLongError, match="the context is 512"):
        model.embed([TEXTS[-1] * 4])


def test_it_writes_no_text(model: mlxr.Model) -> None:
    with pytest.raises(mlxr.RequestError, match="an encoder, which makes vectors of texts and writes none"):
        model.generate("Hello")

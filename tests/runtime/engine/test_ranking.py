"""Rerankers: scores are those of transformers' encoders with a head, and of yes and no of a decoder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlxr
from mlxr.loading.options import LoadOptions
from mlxr.runtime.engine.prompts import Pair
from mlxr.runtime.engine.ranking.ranker import in_order
from mlxr.runtime.tokenizer.library_tokenizer import LibraryTokenizer
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.pool.model_source import ModelSource
from mlxr_tests.encoder_models import DOCUMENTS, QUERY, WORDS, recorded, save_encoder
from mlxr_tests.family_models import build_model, config_of, save_folder
from mlxr_tests.running_server import RunningServer, running_server
from mlxr_tests.storyteller import TINY
from mlxr_tests.vocabularies import single_bytes

CASE = recorded()["rankers"]["bert"]
SCORES = 1 / (1 + np.exp(-np.array(CASE["logits"])))
EXACT = mlxr.Changes(compute="exact")
CONTROL = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")


def save_ranker(folder: Path, **config: Any) -> Path:
    case = CASE | {"config": CASE["config"] | config}
    save_encoder(case, folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_ranker(tmp_path_factory.mktemp("ranker") / "model")


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[mlxr.Model]:
    with mlxr.load(folder, host="cpu", threads=1, changes=EXACT) as loaded:
        yield loaded


def test_pairs_are_those_of_transformers(model: mlxr.Model) -> None:
    pairs = [model.ranker().pair(QUERY, document) for document in DOCUMENTS]
    assert [pair.ids for pair in pairs] == CASE["ids"]
    assert {pair.second for pair in pairs} == {CASE["ids"][0].index(WORDS.index("[SEP]")) + 1}
    assert len(pairs[-1].ids) == CASE["config"]["max_position_embeddings"]
    assert model.ranker().pair(QUERY, DOCUMENTS[-1], 1000) == pairs[-1]
    assert len(model.ranker().pair(QUERY, DOCUMENTS[-1], 3).ids) == len(model.ranker().pair(QUERY, "").ids) + 3


def test_scores_are_those_of_transformers(model: mlxr.Model) -> None:
    ranked = model.rerank(QUERY, DOCUMENTS)
    assert [one.document for one in ranked] == np.argsort(-SCORES).tolist()
    np.testing.assert_allclose([one.score for one in ranked], np.sort(SCORES)[::-1], atol=1e-5)
    assert model.rerank(QUERY, DOCUMENTS, top_n=2) == ranked[:2]
    assert len({round(one.score, 3) for one in ranked}) > 3
    assert [one.document for one in in_order([0.5, 0.7, 0.5])] == [1, 0, 2]


def test_roberta_has_one_type_and_another_head(tmp_path: Path) -> None:
    case = recorded()["rankers"]["roberta"]
    folder = save_encoder(case, tmp_path / "model")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    with mlxr.load(folder, host="cpu", threads=1, changes=EXACT) as other:
        assert [other.ranker().pair(QUERY, document) for document in DOCUMENTS] == [(ids, None) for ids in case["ids"]]
        scores = {one.document: one.score for one in other.rerank(QUERY, DOCUMENTS)}
    expected = 1 / (1 + np.exp(-np.array(case["logits"])))
    np.testing.assert_allclose([scores[i] for i in range(len(DOCUMENTS))], expected, atol=1e-5)


def test_types_of_tokens_count(model: mlxr.Model) -> None:
    """Also in company of texts that have none."""
    ids, second = model.ranker().pair(QUERY, DOCUMENTS[0])
    pair = Pair(ids, second)
    typed, plain, both = (model.embed(asked, pooling="cls") for asked in ([pair], [ids], [ids, pair]))
    assert np.abs(typed - plain).max() > 1e-3
    np.testing.assert_allclose(both, np.concatenate([plain, typed]), atol=1e-6)
    one, typed_one = (model.embed([asked], pooling="cls") for asked in (ids[:1], Pair(ids[:1], 0)))
    assert np.abs(one - typed_one).max() > 1e-3


@pytest.mark.parametrize("host", ["reference", pytest.param("sim", marks=pytest.mark.long)])
def test_on_other_hosts(folder: Path, host: str) -> None:
    changes = mlxr.Changes(compute="exact", activation_dtype="f32")
    with mlxr.load(folder, host=host, changes=changes) as other:
        scores = {one.document: one.score for one in other.rerank(QUERY, DOCUMENTS)}
    np.testing.assert_allclose([scores[i] for i in range(len(DOCUMENTS))], SCORES, atol=1e-5)


def test_what_does_not_rank(model: mlxr.Model, tmp_path: Path) -> None:
    with pytest.raises(mlxr.RequestError, match=r"the query takes .* tokens .*; the context is 40: shorten it"):
        model.rerank("bana " * 60, DOCUMENTS)
    with pytest.raises(TypeError, match="documents is a text"):
        model.rerank(QUERY, "dane")
    with pytest.raises(mlxr.RequestError, match="top_n is -1, expected at least 1"):
        model.rerank(QUERY, DOCUMENTS, top_n=-1)
    with pytest.raises(mlxr.RequestError, match="no prompt was given"):
        model.rerank(QUERY, [])
    with (
        mlxr.load(TINY, host="cpu", threads=1) as other,
        pytest.raises(mlxr.RequestError, match=r"of family .* do not rank"),
    ):
        other.rerank(QUERY, DOCUMENTS)
    plain = save_encoder(recorded()["encoders"]["bert"], tmp_path / "plain")
    (plain / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    with mlxr.load(plain, host="cpu", threads=1) as other, pytest.raises(mlxr.RequestError, match="no head that ranks"):
        other.rerank(QUERY, DOCUMENTS)


@pytest.mark.parametrize(
    ("shape", "said"), [(None, "lacks the first of the two products"), ([3, 64], "gives 3 numbers of a text")]
)
def test_heads_that_do_not_rank(shape: list[int] | None, said: str, tmp_path: Path) -> None:
    """Half of a head, as GGUF files of BERT have it, and that of a classifier."""
    tensors = {name: own for name, own in CASE["tensors"].items() if shape or "pooler" not in name}
    tensors |= {"classifier.weight": shape, "classifier.bias": shape[:1]} if shape else {}
    folder = save_encoder(CASE | {"tensors": tensors}, tmp_path / "model")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    with mlxr.load(folder, host="cpu", threads=1, changes=EXACT) as other, pytest.raises(mlxr.RequestError, match=said):
        other.rerank(QUERY, DOCUMENTS)


@pytest.mark.parametrize("tied", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_decoder_says_yes_or_no(tied: bool, tmp_path: Path) -> None:
    """The score is the softmax of the two words' logits, of tied embeddings and of an output projection."""
    library = single_bytes(*CONTROL, text_names=("yes", "no"))
    config = config_of("qwen3") | {"vocab_size": 264, "max_position_embeddings": 1024, "tie_word_embeddings": tied}
    mx.random.seed(3)
    path = save_folder(build_model(config), config, tmp_path / str(tied))
    library.save(str(path / "tokenizer.json"))
    yes, no = (LibraryTokenizer(library, "test").encode(word)[-1] for word in ("yes", "no"))
    documents = ["A city by the sea.", "Why? " * 100, "no"]
    changes = mlxr.Changes(compute="exact", cache_dtype="f32", output="hidden")
    with mlxr.load(path, host="cpu", threads=1, changes=changes) as ranks:
        pairs = [ranks.ranker().pair("Where is it?", document) for document in documents]
        scores = {one.document: one.score for one in ranks.rerank("Where is it?", documents)}
        assert "<Document>: A city" in ranks.require_tokenizer().decode(pairs[0].ids)
    with mlxr.load(path, host="cpu", threads=1, changes=mlxr.Changes(compute="exact", cache_dtype="f32")) as writes:
        for number, pair in enumerate(pairs):
            logits = writes.logits(pair.ids)[-1].astype(np.float64)
            expected = 1 / (1 + np.exp(logits[no] - logits[yes]))
            assert abs(scores[number] - expected) < 1e-5 and 1e-4 < expected < 1 - 1e-4
        with pytest.raises(mlxr.RequestError, match="was loaded to generate: load it to rank with"):
            writes.rerank("x", ["y"])


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    sources = [
        ModelSource(name, str(path), LoadOptions(host="cpu", threads=1, changes=EXACT))
        for name, path in (("ranker", folder), ("tiny", TINY))
    ]
    with running_server(lambda: ModelPool(sources)) as running:
        yield running


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_over_http(server: RunningServer, path: str) -> None:
    body = {"model": "ranker", "query": QUERY, "documents": [{"text": DOCUMENTS[0]}, *DOCUMENTS[1:]]}
    answer = server.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert [one["index"] for one in told["results"]] == np.argsort(-SCORES).tolist()
    np.testing.assert_allclose([one["relevance_score"] for one in told["results"]], np.sort(SCORES)[::-1], atol=1e-5)
    tokens = sum(map(len, CASE["ids"]))
    if path == "/v2/rerank":
        assert told["meta"] == {"api_version": {"version": "2"}, "tokens": {"input_tokens": tokens}}
        assert "document" not in told["results"][0]
    else:
        assert told["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens} and told["model"] == "ranker"
        assert [one["document"]["text"] for one in told["results"]] == [DOCUMENTS[i] for i in np.argsort(-SCORES)]
    best = server.http.post(path, json=body | {"top_n": 1}).json()["results"]
    assert [one["index"] for one in best] == [int(np.argmax(SCORES))]


def test_what_the_server_refuses(server: RunningServer) -> None:
    body = {"model": "ranker", "query": QUERY, "documents": DOCUMENTS}
    for changed, status, said in (
        ({"model": "tiny"}, 400, "do not rank"),
        ({"model": "other"}, 404, "there is no model"),
        ({"query": ""}, 400, "query is empty"),
        ({"query": "bana " * 60}, 400, "shorten it"),
        ({"documents": []}, 400, "documents is an empty list"),
        ({"rank_fields": ["a"]}, 400, "rank_fields"),
        ({"top_n": 0}, 400, "top_n"),
    ):
        answer = server.http.post("/v1/rerank", json=body | changed)
        assert answer.status_code == status and said in answer.text, answer.text

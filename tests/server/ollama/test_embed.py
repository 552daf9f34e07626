"""/api/embed and /api/embeddings by Ollama's own client, against what OpenAI's path gives for the same texts."""

from typing import Any

import numpy as np
import ollama
import pytest

from mlxr_tests.running_server import RunningServer

TEXTS = ["Once upon a time", "The fox said", "A"]


@pytest.fixture(scope="module")
def client(server: RunningServer) -> ollama.Client:
    return ollama.Client(host=server.url, timeout=60)


def of_openai(server: RunningServer, texts: Any, **options: Any) -> tuple[list[list[float]], int]:
    """The vectors, and how many tokens the texts have."""
    told = server.http.post("/v1/embeddings", json={"model": "tiny", "input": texts} | options).json()
    return [entry["embedding"] for entry in told["data"]], told["usage"]["prompt_tokens"]


def test_vectors_are_those_of_the_other_api(client: ollama.Client, server: RunningServer) -> None:
    expected, num_tokens = of_openai(server, TEXTS)
    told = client.embed("tiny:latest", TEXTS, options={"temperature": 0.5, "num_ctx": 512}, keep_alive="5m")
    assert (told.model, told.prompt_eval_count) == ("tiny:latest", num_tokens)
    assert told.embeddings == expected and (told.total_duration or 0) > (told.load_duration or 0) > 0
    assert client.embed("tiny", TEXTS[1]).embeddings == [expected[1]]
    short = client.embed("tiny", TEXTS[1], dimensions=5, truncate=False).embeddings
    assert short == of_openai(server, TEXTS[1], dimensions=5)[0] and np.linalg.norm(short) == pytest.approx(1)
    old = client.embeddings("tiny", TEXTS[1]).embedding
    assert [old] == of_openai(server, TEXTS[1], normalize=False)[0] and abs(np.linalg.norm(old) - 1) > 0.01


def test_a_text_is_cut_only_where_that_is_asked_for(server: RunningServer) -> None:
    long = "a fox and a hill " * 5_000
    ids = server.http.post("/tokenize", json={"model": "tiny", "prompt": long}).json()["tokens"]
    body = {"model": "tiny", "input": ["A", long]}
    for given in ({}, {"truncate": False}):
        answer = server.http.post("/api/embed", json=body | given)
        assert answer.status_code == 400 and answer.json()["error"].startswith("input[1]: the ")
        assert "the context is 512: shorten it, or set truncate" in answer.json()["error"]
    told = server.http.post("/api/embed", json=body | {"truncate": True}).json()
    assert told["truncated"] == [1] and told["prompt_eval_count"] == 512 + of_openai(server, "A")[1]
    assert told["embeddings"][1:] == of_openai(server, ids[:512])[0]
    answer = server.http.post("/api/embeddings", json={"model": "tiny", "prompt": long})
    assert answer.status_code == 400 and "the context is 512: shorten it, or load" in answer.json()["error"]
    assert (
        "truncated" not in server.http.post("/api/embed", json={"model": "tiny", "input": "A", "truncate": True}).json()
    )


def test_without_a_text_the_model_is_loaded_or_unloaded(client: ollama.Client, server: RunningServer) -> None:
    for empty in ("", []):
        assert client.embed("plain", empty).embeddings == []
    assert server.do(lambda: server.pool.unload("plain")), "it is there, and nobody uses it"
    assert client.embeddings("plain", "").embedding == []
    assert client.embed("plain", keep_alive=0).embeddings == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input": ["a", ""]}, "input[1] is empty"),
        ({"input": 5}, "input"),
        ({"input": ["a"] * 2049}, "input has 2049 texts; this server takes 2048 at once"),
        ({"input": "a", "dimensions": 100_000}, "dimensions is 100000; this model's embeddings have"),
        ({"input": "a", "options": {"num_ctx": -1}}, "options.num_ctx: input should be greater than or equal to 0"),
        ({"input": "a", "options": {"colour": 1}}, "options.colour is not a field that is supported"),
        ({"input": "a", "prompt": "b"}, "prompt is not a field that is supported"),
        ({"input": "a", "keep_alive": "soon"}, 'keep_alive is "soon"; expected seconds'),
        ({"input": "a", "model": "llama3"}, "there is no model 'llama3' here"),
    ],
)
def test_what_is_refused(server: RunningServer, body: dict[str, Any], message: str) -> None:
    answer = server.http.post("/api/embed", json={"model": "tiny"} | body)
    assert answer.status_code == (404 if "model" in body else 400)
    assert message in answer.json()["error"]

"""/v1/embeddings by the official client."""

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

import mlxr
from mlxr_tests.running_server import EXACT, RunningServer
from mlxr_tests.storyteller import TINY

TEXTS = ["Once upon a time", "The fox said", "A", "Once upon a hill there was a very small house"]


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    """The library's embeddings of the texts."""
    changes = mlxr.Changes(output="hidden", compute=EXACT.compute, cache_dtype=EXACT.cache_dtype, sequences=2)
    with mlxr.load(TINY, host="cpu", threads=1, changes=changes) as model:
        return model.embed(TEXTS)


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def ids_of(server: RunningServer, text: str) -> list[int]:
    ids: list[int] = server.http.post("/tokenize", json={"model": "tiny", "prompt": text}).json()["tokens"]
    return ids


def test_the_client_gets_what_the_library_gives(
    server: RunningServer, client: openai.OpenAI, expected: np.ndarray
) -> None:
    """In both encodings (the client asks for base64 by itself), as texts and as ids, alone and together."""
    ids = [ids_of(server, text) for text in TEXTS]
    floats = client.embeddings.create(model="tiny", input=TEXTS, encoding_format="float")
    for told in (floats, client.embeddings.create(model="tiny", input=TEXTS)):
        assert [entry.index for entry in told.data] == [0, 1, 2, 3]
        np.testing.assert_array_equal(np.array([entry.embedding for entry in told.data], np.float32), expected)
    assert floats.usage.prompt_tokens == floats.usage.total_tokens == sum(map(len, ids))
    assert floats.object == "list" and floats.model == "tiny" and floats.data[0].object == "embedding"
    for given in (TEXTS[1], ids[1], [ids[1]], [TEXTS[1]]):
        (entry,) = client.embeddings.create(model="tiny", input=given).data
        np.testing.assert_array_equal(np.array(entry.embedding, np.float32), expected[1])
    raw = server.http.post("/v1/embeddings", json={"model": "tiny", "input": "A", "encoding_format": "base64"}).json()
    decoded = np.frombuffer(base64.b64decode(raw["data"][0]["embedding"]), "<f4")
    np.testing.assert_array_equal(decoded, expected[2])


def test_dimensions_and_options(client: openai.OpenAI, expected: np.ndarray) -> None:
    (entry,) = client.embeddings.create(model="tiny", input=TEXTS[3], dimensions=5, user="u").data
    cut = expected[3][:5] / np.linalg.norm(expected[3][:5])
    np.testing.assert_allclose(entry.embedding, cut, rtol=1e-5)
    own: dict[str, Any] = {"pooling": "last", "normalize": False}
    last = client.embeddings.create(model="tiny", input=TEXTS[3], extra_body=own).data[0].embedding
    assert abs(np.linalg.norm(last) - 1) > 0.01 and np.abs(np.array(last) - expected[3]).max() > 0.01


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ({"input": ""}, "invalid_value", "input is empty"),
        ({"input": []}, "invalid_value", "input is an empty list"),
        ({"input": ["a", ""]}, "invalid_value", r"input\[1\] is empty"),
        ({"input": [[5], []]}, "invalid_value", r"input\[1\] is empty"),
        ({"input": [99999]}, "invalid_value", "token id 99999 is outside the vocabulary"),
        ({"input": [True]}, "invalid_value", "input"),
        ({"input": "a", "dimensions": 100_000}, "invalid_value", "dimensions is 100000; this model's embeddings have"),
        ({"input": "a", "dimensions": 0}, "invalid_value", "dimensions: input should be greater than"),
        ({"input": "a", "pooling": "max"}, "invalid_value", "pooling: input should be .mean., .last. or .cls."),
        ({"input": "a", "encoding_format": "int8"}, "invalid_value", "encoding_format"),
        ({"input": ["a", [5]]}, "invalid_value", "input"),
        ({"input": [5] * 513}, "context_length_exceeded", "the text has 513 tokens; the context is 512: shorten it"),
        ({"input": ["a", "word " * 40_000]}, "context_length_exceeded", r"input\[1\]: "),
        ({"input": ["a"] * 2049}, "invalid_value", "input has 2049 texts; this server takes 2048 at once"),
        ({"input": "a", "truncate_prompt_tokens": 5}, "unsupported_field", "truncate_prompt_tokens is not supported"),
        ({}, "missing_field", "input is missing"),
    ],
)
def test_what_is_refused(client: openai.OpenAI, body: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message) as told:
        client.post("/embeddings", body={"model": "tiny"} | body, cast_to=object)
    assert told.value.code == code
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="nobody", input="a")


@pytest.mark.long
def test_other_requests_go_on_and_nothing_is_left(server: RunningServer, client: openai.OpenAI) -> None:
    many = client.embeddings.create(model="tiny", input=[f"text number {i}" for i in range(300)])
    assert len(many.data) == 300
    assert client.completions.create(model="tiny", prompt="Once", max_tokens=3).choices[0].text
    assert [model["id"] for model in server.http.get("/v1/models").json()["data"]] == ["tiny", "plain", "tools"]

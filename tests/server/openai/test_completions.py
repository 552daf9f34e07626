"""/v1/completions, with what evaluation harnesses ask of it."""

from typing import Any

import numpy as np
import pytest

import mlxr
from mlxr_tests.running_server import EXACT, RunningServer
from mlxr_tests.storyteller import TINY

TEXTS = ["Once upon a time", "The fox said", "Once upon a hill"]


def ask(server: RunningServer, **body: Any) -> dict[str, Any]:
    answer = server.http.post("/v1/completions", json={"model": "tiny", "temperature": 0} | body)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def test_texts_and_ids_get_what_the_library_gives(server: RunningServer) -> None:
    with mlxr.load(TINY, host="cpu", threads=1, changes=EXACT) as model:
        expected = [model.generate(text, max_tokens=8).text for text in TEXTS]
        ids = [model.encode(text) for text in TEXTS]
    told = ask(server, prompt=TEXTS, max_tokens=8)
    assert [choice["text"] for choice in told["choices"]] == expected
    assert [choice["index"] for choice in told["choices"]] == [0, 1, 2]
    assert [choice["text"] for choice in ask(server, prompt=ids, max_tokens=8)["choices"]] == expected
    assert ask(server, prompt=ids[1], max_tokens=8)["choices"][0]["text"] == expected[1]
    assert told["usage"]["prompt_tokens"] == sum(map(len, ids)) and told["usage"]["completion_tokens"] == 24


def test_tokens_end_an_answer(server: RunningServer) -> None:
    with mlxr.load(TINY, host="cpu", threads=1, changes=EXACT) as model:
        expected = model.generate(TEXTS[0], max_tokens=8)
    ids = list(expected.token_ids)
    end = next(i for i in range(1, 8) if ids[i] not in ids[:i])
    told = ask(server, prompt=TEXTS[0], max_tokens=8, stop_token_ids=[ids[end]], best_of=1)
    (choice,) = told["choices"]
    assert expected.text.startswith(choice["text"]) and len(choice["text"]) < len(expected.text)
    assert choice["finish_reason"] == "stop" and told["usage"]["completion_tokens"] == end + 1
    told = ask(server, prompt=TEXTS[0], max_tokens=8, stop_token_ids=[ids[end]], min_tokens=8, ignore_eos=True)
    assert told["usage"]["completion_tokens"] == 8


def test_names_of_control_tokens_in_a_prompt_are_these_tokens(server: RunningServer) -> None:
    """Clients that write conversations themselves count on it. The prompt comes back as it was."""
    with mlxr.load(TINY, host="cpu", threads=1, changes=EXACT) as model:
        first, second = (model.require_tokenizer().encode(text, add_special=False) for text in TEXTS[:2])
        ids = [1, *first, 2, 1, *second]
        expected = model.generate(ids, max_tokens=8).text
    text = f"{TEXTS[0]}</s><s>{TEXTS[1]}"
    told = ask(server, prompt=text, max_tokens=8, echo=True)
    assert told["choices"][0]["text"] == text + expected and told["usage"]["prompt_tokens"] == len(ids)
    assert server.http.post("/tokenize", json={"model": "tiny", "prompt": text}).json()["tokens"] == ids


def test_log_probabilities_of_a_prompt(server: RunningServer) -> None:
    """What lm-eval asks for: echo without a new token. The reference is the softmax of the model's own logits."""
    with mlxr.load(TINY, host="cpu", threads=1, changes=EXACT) as model:
        ids = model.encode(TEXTS[0])
        logits = model.logits(ids).astype(np.float64)
    rows = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
    rows -= logits.max(1, keepdims=True)
    expected = [rows[i, token] for i, token in enumerate(ids[1:])]
    choice = ask(server, prompt=ids, max_tokens=0, echo=True, logprobs=1)["choices"][0]
    told = choice["logprobs"]
    assert choice["text"].replace("▁", " ").strip() == TEXTS[0] and len(told["tokens"]) == len(ids)
    assert told["token_logprobs"][0] is None and told["top_logprobs"][0] is None
    np.testing.assert_allclose(told["token_logprobs"][1:], expected, atol=1e-4)
    greedy = [bool(rows[i].argmax() == token) for i, token in enumerate(ids[1:])]
    assert [
        max(top.values()) == own for top, own in zip(told["top_logprobs"][1:], told["token_logprobs"][1:], strict=True)
    ] == greedy
    assert ask(server, prompt=ids, max_tokens=0, echo=True)["usage"]["completion_tokens"] == 0
    more = ask(server, prompt=ids, max_tokens=2, echo=True, logprobs=0)["choices"][0]["logprobs"]
    assert len(more["tokens"]) == len(ids) + 2 and more["token_logprobs"][1:-2] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": []}, "prompt is an empty list"),
        ({"prompt": [99999]}, "token id 99999 is outside the vocabulary"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens is 0, which needs echo"),
        ({"prompt": "x", "best_of": 3, "n": 2}, "best_of is 3, and n is 2: ask for n answers and choose"),
        ({"prompt": "x", "stop_token_ids": [1 << 20]}, "stop_tokens has token id 1048576, outside the vocabulary"),
        ({"prompt": {"a": 1}}, "prompt: input should be"),
        ({"prompt": "x", "stop": 3}, "stop: input should be"),
        ({"prompt": "x", "seed": 10**400}, "seed is too large: expected a whole number of at most 64 bits"),
        ({"prompt": "x", "seed": 1.5}, "seed: input should be a valid integer"),
        ({}, "prompt is missing"),
    ],
)
def test_bad_requests(server: RunningServer, body: dict[str, Any], message: str) -> None:
    answer = server.http.post("/v1/completions", json={"model": "tiny"} | body)
    assert answer.status_code == 400 and message in answer.json()["error"]["message"]
    assert ask(server, prompt="Once", max_tokens=1)["choices"][0]["text"], "others are served as before"


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[]", b"null", b'{"model": NaN}', b"9" * 5000])
def test_bodies_that_are_no_requests(server: RunningServer, body: bytes) -> None:
    answer = server.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and answer.json()["error"]["message"]

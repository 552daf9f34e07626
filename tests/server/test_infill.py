"""Text between two others: /infill as editors ask llama.cpp's server, `suffix` of the other APIs, and `Model.fill`."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mlxr
from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.completion import Event
from mlxr.runtime.tokenizer.library_tokenizer import LibraryTokenizer
from mlxr.runtime.tokenizer.load_tokenizer import load_tokenizer
from mlxr.server.infill import InfillAnswer, InfillRequest
from mlxr.server.pool.model_pool import ModelPool
from mlxr_tests.running_server import EXACT, RunningServer, running_server, tiny_source
from mlxr_tests.storyteller import TINY
from mlxr_tests.vocabularies import single_bytes

NAMES = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|file_sep|>", "<|repo_name|>")
PREFIX, SUFFIX = "def f(x):\n    ", "\nf(1)\n"
FILES = [("a.py", "import os\n"), ("b.py", "B = 1\n")]


FIRST, NUM_FILLERS = 256, 640 - 256 - len(NAMES)
"""The ids between bytes and names, which the model knows, too."""


def write_vocabulary(path: Path, ending: int | None = None) -> Path:
    """Writes a tokenizer.json, in which one more id may be CodeGemma's token that ends text between two others."""
    fillers = ["<|file_separator|>" if id_ == ending else f"<unused{id_}>" for id_ in range(FIRST, FIRST + NUM_FILLERS)]
    single_bytes(*fillers, *NAMES).save(str(path))
    return path


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vocabulary(tmp_path_factory.mktemp("code") / "tokenizer.json")


@pytest.fixture(scope="module")
def own(vocabulary: Path) -> Iterator[RunningServer]:
    with running_server(lambda: ModelPool([tiny_source(tokenizer=vocabulary)])) as running:
        yield running


@pytest.fixture(scope="module")
def expected(vocabulary: Path) -> dict[str, mlxr.Completion]:
    """What the model answers to prompts that are written by hand."""
    tokenizer = load_tokenizer(vocabulary)
    head = "<|repo_name|>myproject\n<|file_sep|>a.py\nimport os\n<|file_sep|>b.py\nB = 1\n<|file_sep|>filename\n"
    text = f"<|fim_prefix|>{PREFIX}<|fim_suffix|>{SUFFIX}<|fim_middle|>"
    with mlxr.load(TINY, host="cpu", threads=1, changes=EXACT, tokenizer=vocabulary) as model:
        texts = {"plain": text, "files": head + text}
        ids = {name: tokenizer.encode(text, parse_special=True) for name, text in texts.items()}
        told = {name: model.generate(prompt, max_tokens=12) for name, prompt in ids.items()}
        assert model.fill(PREFIX, SUFFIX, max_tokens=12).token_ids == told["plain"].token_ids
        assert model.fill(PREFIX, SUFFIX, files=FILES, max_tokens=12).token_ids == told["files"].token_ids
    assert told["plain"].token_ids != told["files"].token_ids
    return told


def ask(server: RunningServer, **body: Any) -> Any:
    asked = {"input_prefix": PREFIX, "input_suffix": SUFFIX, "n_predict": 12, "temperature": 0} | body
    return server.http.post("/infill", json=asked)


def test_ollamas_clients_are_told(own: RunningServer) -> None:
    [model] = own.http.get("/api/tags").json()["models"]
    assert own.http.post("/api/show", json={"model": model["name"]}).json()["capabilities"] == ["completion", "insert"]


def test_infill(own: RunningServer, expected: dict[str, mlxr.Completion]) -> None:
    told = ask(own).json()
    assert told["content"] == expected["plain"].text and told["stop"] is True and told["stop_type"] == "limit"
    assert told["tokens_evaluated"] == expected["plain"].prompt_tokens and told["tokens_predicted"] == 12
    assert told["tokens"] == [] and told["truncated"] is False and told["timings"]["predicted_n"] == 12
    extra = [{"filename": name, "text": text} for name, text in FILES]
    line = {"input_prefix": "def f(x):\n", "prompt": "    "}
    told = ask(own, input_extra=extra, return_tokens=True, **line).json()
    assert told["tokens"] == expected["files"].token_ids


def test_a_prompt_that_was_read_before_is_cached(own: RunningServer) -> None:
    """Editors send other files before the cursor comes to rest, and want no text."""
    extra = [{"filename": "c.py", "text": "C = 2\n" * 50}]
    read = ask(own, input_extra=extra, n_predict=0, response_fields=[""])
    assert read.json() == {}
    fields = ["content", "timings/prompt_n", "timings/cache_n", "tokens_cached", "no/such"]
    told = ask(own, input_extra=extra, response_fields=fields).json()
    assert set(told) == set(fields) - {"no/such"} and 0 < told["timings/prompt_n"] < 64 < told["timings/cache_n"]
    none = ask(own, n_predict=0).json()
    assert (none["content"], none["tokens_predicted"], none["stop_type"]) == ("", 0, "limit")


def test_it_streams(own: RunningServer, expected: dict[str, mlxr.Completion]) -> None:
    lines = [json.loads(line[6:]) for line in ask(own, stream=True).text.split("\n\n") if line.startswith("data: ")]
    assert "".join(line["content"] for line in lines) == expected["plain"].text
    assert [token for line in lines for token in line["tokens"]] == expected["plain"].token_ids
    assert [line["stop"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1]["tokens_predicted"] == 12 and lines[-1]["content"] == ""


def test_an_answer_ends_where_it_should(own: RunningServer, expected: dict[str, mlxr.Completion]) -> None:
    text = expected["plain"].text
    word = next(letter for letter in text if text.index(letter) > 0)
    told = ask(own, stop=[word]).json()
    assert told["content"] == text[: text.index(word)] and (told["stop_type"], told["stopping_word"]) == ("word", word)


def test_texts_that_are_too_long_are_cut(own: RunningServer) -> None:
    told = ask(own, input_prefix="x = 1\n" * 1000).json()
    assert told["truncated"] is True and 400 < told["tokens_evaluated"] <= 500 and told["tokens_predicted"] > 0


@pytest.mark.parametrize(
    ("body", "texts", "expected"),
    [
        ({"n_indent": 4}, ["x = 1\n", "   ", " y\n  ", "z\n"], "x = 1\n    y\n  "),
        ({"n_indent": 4}, ["x\n\n    y\nz", "more"], "x\n\n    y\n"),
        ({"n_indent": 0}, ["x\ny\n", "z"], "x\ny\nz"),
        ({"t_max_predict_ms": 1e-6}, ["x", "y\n", "z", "more"], "xy\nz"),
    ],
)
def test_lines_that_are_indented_less_end_an_answer_and_so_does_time(
    body: dict[str, Any], texts: list[str], expected: str
) -> None:
    class Engine:
        async def generate(self, *_: Any) -> AsyncGenerator[Event]:
            for text in texts:
                yield Event(0, 1, text)

    async def test() -> str:
        model = SimpleNamespace(require_tokenizer=lambda: LibraryTokenizer(single_bytes(*NAMES), "here"))
        loaded: Any = SimpleNamespace(engine=Engine(), limit=SimpleNamespace(tokens=512))
        loaded.engine.model = model
        answer = InfillAnswer(InfillRequest(input_prefix="", input_suffix="", **body), "tiny")
        return "".join([event.text async for event in answer.events(loaded)])

    assert asyncio.run(test()) == expected


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({"input_extra": [{"filename": "a.py"}]}, "input_extra"),
        ({"input_extra": {}}, "input_extra"),
        ({"input_suffix": None}, "input_suffix"),
        ({"n_predict": -2}, "n_predict"),
        ({"top_p": 3.0}, "top_p"),
        ({"model": "other"}, "other"),
    ],
)
def test_bad_requests(own: RunningServer, body: dict[str, Any], what: str) -> None:
    told = ask(own, **body)
    assert told.status_code in (400, 404) and what in told.json()["error"]["message"]


def test_suffix_of_other_apis(own: RunningServer, expected: dict[str, mlxr.Completion]) -> None:
    body = {"model": "tiny", "prompt": PREFIX, "suffix": SUFFIX, "max_tokens": 12, "temperature": 0}
    told = own.http.post("/v1/completions", json=body).json()
    assert told["choices"][0]["text"] == expected["plain"].text
    assert told["usage"]["prompt_tokens"] == expected["plain"].prompt_tokens
    for more, what in (({"echo": True}, "echo"), ({"prompt": [1, 2]}, "suffix")):
        refused = own.http.post("/v1/completions", json=body | more)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == what
    options = {"num_predict": 12, "temperature": 0}
    body = {"model": "tiny", "prompt": PREFIX, "suffix": SUFFIX, "stream": False, "options": options}
    assert own.http.post("/api/generate", json=body).json()["response"] == expected["plain"].text
    assert "raw is given" in own.http.post("/api/generate", json=body | {"raw": True}).json()["error"]


def test_control_tokens_for_it_end_an_answer(expected: dict[str, mlxr.Completion], tmp_path: Path) -> None:
    ids = expected["plain"].token_ids
    end = next(i for i, token in enumerate(ids) if FIRST <= token < FIRST + NUM_FILLERS and i and token not in ids[:i])
    vocabulary = write_vocabulary(tmp_path / "tokenizer.json", ids[end])
    with mlxr.load(TINY, host="cpu", threads=1, changes=EXACT, tokenizer=vocabulary) as model:
        told = model.fill(PREFIX, SUFFIX, max_tokens=12)
        assert told.token_ids == ids[: end + 1] and told.finish_reason == "stop"
    body: dict[str, Any] = {"model": "tiny", "prompt": PREFIX, "suffix": SUFFIX}
    with running_server(lambda: ModelPool([tiny_source(tokenizer=vocabulary)])) as server:
        told = ask(server).json()
        assert (told["tokens_predicted"], told["stop_type"]) == (end + 1, "eos")
        told = server.http.post("/v1/completions", json=body | {"max_tokens": 12, "temperature": 0}).json()
        assert (told["usage"]["completion_tokens"], told["choices"][0]["finish_reason"]) == (end + 1, "stop")
        options = {"num_predict": 12, "temperature": 0}
        told = server.http.post("/api/generate", json=body | {"stream": False, "options": options}).json()
        assert (told["eval_count"], told["done_reason"]) == (end + 1, "stop")


def test_a_model_without_control_tokens_for_it(server: RunningServer) -> None:
    message = "the model cannot fill in the middle"
    assert message in ask(server, model="tiny").json()["error"]["message"]
    body = {"model": "tiny", "prompt": PREFIX, "suffix": SUFFIX}
    refused = server.http.post("/v1/completions", json=body)
    assert refused.status_code == 400 and message in refused.json()["error"]["message"]
    with mlxr.load(TINY, host="cpu", threads=1) as model, pytest.raises(RequestError, match=message):
        model.fill(PREFIX, SUFFIX)

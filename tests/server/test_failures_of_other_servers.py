"""What makes people distrust servers of today, each asked of every API.

Log probabilities of prompts are in openai/test_completions.py, code of downloads in tests/hub/test_pull.py, and
models that start with less memory than planned in pool/test_model_source.py.
"""

import dataclasses
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import mlxr
from mlxr.runtime.engine.engine_thread import EngineThread
from mlxr.server.field_tables import request_models
from mlxr.server.fields import classes
from mlxr.server.pool.model_pool import ModelPool
from mlxr_tests.api_calls import APIS, CHAT, COMPLETIONS, MESSAGES, OLLAMA_CHAT, RESPONSES, Answer, Api, Question
from mlxr_tests.few import few
from mlxr_tests.running_server import CHATML, EXACT, RunningServer, running_server, tiny_source
from mlxr_tests.storyteller import TINY

SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "sizes": {"type": "array", "items": {"type": "integer"}}},
    "required": ["colour", "sizes"],
    "additionalProperties": False,
}
SCHEMA["properties"]["sizes"] |= {"minItems": 1, "maxItems": 2}  # type: ignore[index]
ENDLESS = Question("Tell me a long story", max_tokens=4000, seed=1, temperature=1.0)
each_api = pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)


@pytest.fixture(scope="module")
def model() -> Iterator[mlxr.Model]:
    with mlxr.load(TINY, host="cpu", threads=1, changes=EXACT) as loaded:
        yield loaded


def ask(server: RunningServer, api: Api, question: Question) -> Answer:
    with server.http.stream("POST", api.path, json=api.body(question)) as response:
        lines = list(response.iter_lines())
        assert response.status_code == 200, lines
        return api.answer(lines, question.stream)


def engine_of(server: RunningServer, name: str = "tiny") -> EngineThread:
    engine: EngineThread = server.do(lambda: server.pool.find(name).loaded.engine)  # type: ignore[union-attr]
    return engine


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < end, what
        time.sleep(0.005)


@each_api
def test_answers_end_at_stop_texts_and_generation_with_them(server: RunningServer, api: Api, model: mlxr.Model) -> None:
    if not api.has_stop:
        pytest.skip("it has no stop texts")
    question = Question("The fox", max_tokens=200, temperature=1.0, seed=5)
    whole = model.generate(api.prompt(question.text, model), sampling=question.sampling()).text
    stop = whole[25:28]
    ask(server, api, Question("warm", max_tokens=1))
    before = engine_of(server).stats().generated_tokens
    for stream in (False, True):
        told = ask(server, api, dataclasses.replace(question, stop=("§§", stop), stream=stream))
        assert (told.text, told.finish, told.finishes) == (whole[: whole.index(stop)], "stop", 1)
        assert told.completion is not None and told.completion < 60
        before += told.completion
        assert engine_of(server).stats().generated_tokens == before, "no token is made and thrown away"


@each_api
def test_null_is_nothing_given(server: RunningServer, api: Api) -> None:
    model = request_models()[api.path]
    nulls = dict.fromkeys(name for name in classes(model) if not set(name) & set("[."))
    told = server.http.post(api.path, json=nulls | api.body(Question("Hi")))
    assert told.status_code == 200, told.text


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"stream": True, "stream_options": {"include_usage": None}}),
        ("/v1/messages", {"tools": [{"name": "f", "input_schema": {}, "defer_loading": None}]}),
        ("/v1/responses", {"input": "x", "tools": [{"type": "function", "name": "f", "allowed_callers": None}]}),
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": None}]}),
    ],
)
def test_null_is_nothing_given_in_parts(path: str, more: dict[str, Any]) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    model = request_models()[path]
    model.model_validate({name: value for name, value in body.items() if name in model.model_fields} | more)


@each_api
def test_a_nucleus_of_nothing_is_the_most_probable_token(server: RunningServer, api: Api) -> None:
    greedy, question = Question("The fox"), Question("The fox", temperature=1.0, seed=2)
    body = api.body(question)
    body.get("options", body)["top_p"] = 0
    told = server.http.post(api.path, json=body)
    assert told.status_code == 200, told.text
    assert api.answer(told.text.splitlines(), stream=False).text == ask(server, api, greedy).text


@each_api
def test_why_an_answer_ended_is_always_told_and_once(server: RunningServer, api: Api, model: mlxr.Model) -> None:
    ends = dataclasses.replace(ENDLESS, seed=5, stream=True)  # with the end-of-sequence token
    for question, reason in ((Question("Hi"), "length"), (Question("Hi", stream=True), "length"), (ends, "stop")):
        expected = model.generate(api.prompt(question.text, model), sampling=question.sampling())
        told = ask(server, api, question)
        assert (told.text, told.finish, told.finishes, told.model) == (expected.text, reason, 1, "tiny")
        assert told.completion == len(expected.token_ids) and told.prompt == expected.usage.prompt_tokens


@pytest.mark.parametrize("api", few(APIS, [CHAT, MESSAGES, OLLAMA_CHAT]), ids=lambda api: api.name)
def test_a_schema_is_kept(server: RunningServer, api: Api) -> None:
    for seed in range(4):
        told = ask(server, api, Question("What?", max_tokens=300, temperature=1.5, seed=seed, schema=SCHEMA))
        assert told.finish == "stop"
        jsonschema.validate(json.loads(told.text), SCHEMA)


@pytest.mark.parametrize(
    ("api", "fields"),
    [
        (CHAT, {"response_format": {"type": "json_object"}}),
        (COMPLETIONS, {"structured_outputs": {"json_object": True}}),
        (RESPONSES, {"text": {"format": {"type": "json_object"}}}),
        (OLLAMA_CHAT, {"format": "json"}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_json_is_an_object(server: RunningServer, api: Api, fields: dict[str, Any]) -> None:
    """Clients take values out of it by their keys."""
    for seed in range(4):
        body = api.body(Question("What?", max_tokens=8, temperature=1.5, seed=seed)) | fields
        told = server.http.post(api.path, json=body)
        assert told.status_code == 200, told.text
        assert api.answer(told.text.splitlines(), stream=False).text.lstrip().startswith("{")


@each_api
def test_seeds_count(server: RunningServer, api: Api) -> None:
    texts = [ask(server, api, Question("Once", temperature=1.0, seed=seed)).text for seed in (1, 1, 2, None, None)]
    assert texts[0] == texts[1] and len(set(texts)) == 4


@each_api
def test_prompts_are_never_cut(server: RunningServer, api: Api) -> None:
    for count in (600, 90_000):  # more than the context; more than is read at all
        answer = server.http.post(api.path, json=api.body(Question("word " * count)))
        assert answer.status_code == 400 and "the context is 512" in answer.text, answer.text
    assert ask(server, api, Question("word")).text


@each_api
def test_a_second_turn_is_read_from_the_cache(server: RunningServer, api: Api) -> None:
    """The second prompt begins with the first one and its answer: only the last block of these is read again."""
    salt = f"A conversation of {api.name}: " + "x" * 40
    if api in {CHAT, MESSAGES, RESPONSES}:
        first = ask(server, api, Question(salt))
        second = ask(server, api, Question("More", earlier=(salt, first.text)))
    elif api is COMPLETIONS:
        first = ask(server, api, Question(salt))
        second = ask(server, api, Question(f"{salt} and more"))
    else:
        pytest.skip("Ollama's API does not tell what was cached")
    assert first.prompt is not None and second.cached is not None and first.prompt > 40
    assert second.cached >= first.prompt - 16 - 3


@pytest.mark.parametrize("api", few(APIS, [MESSAGES]), ids=lambda api: api.name)
@pytest.mark.parametrize("stream", few([False, True], [True]))
def test_the_work_for_a_client_that_left_ends(server: RunningServer, api: Api, stream: bool) -> None:
    long = dataclasses.replace(ENDLESS, seed=4)
    whole = ask(server, api, long).completion
    assert whole is not None and whole > 400
    engine = engine_of(server)
    body = json.dumps(api.body(dataclasses.replace(long, stream=stream))).encode()
    head = f"POST {api.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    address, port = server.url.removeprefix("http://").split(":")
    before = engine.stats()
    with socket.create_connection((address, int(port))) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: engine.stats().steps > before.steps, "the answer begins")
    wait_until(lambda: not (stats := engine.stats()).running + stats.waiting, "it goes on without its client")
    after = engine.stats()
    assert after.generated_tokens - before.generated_tokens < whole, "it ended by itself"
    assert after.blocks_free == before.blocks


@pytest.mark.parametrize("prompt", [[{"role": "user"}], {"a": 1}, [["a"]], [None], 7, [[1], 2], [1, [2]]], ids=str)
def test_one_bad_request_is_one_bad_request(server: RunningServer, prompt: Any, model: mlxr.Model) -> None:
    fields = {"/v1/completions": "prompt", "/v1/chat/completions": "messages", "/api/generate": "prompt"}
    for path, name in fields.items():
        answer = server.http.post(path, json={"model": "tiny", name: prompt})
        assert answer.status_code == 400 and name in answer.text
    expected = model.generate(COMPLETIONS.prompt("The fox", model), sampling=Question("The fox").sampling())
    assert ask(server, COMPLETIONS, Question("The fox")).text == expected.text


def test_requests_share_steps(server: RunningServer, model: mlxr.Model) -> None:
    """The second one is answered while the first goes on: steps compute both."""
    bodies = CHAT.body(dataclasses.replace(ENDLESS, stream=True)) | {"ignore_eos": True}
    ask(server, CHAT, Question("warm", max_tokens=1))
    with server.http.stream("POST", CHAT.path, json=bodies) as first:
        lines = first.iter_lines()
        next(lines)
        expected = model.generate(COMPLETIONS.prompt("Once", model), sampling=Question("Once").sampling())
        assert ask(server, COMPLETIONS, Question("Once")).text == expected.text
        assert engine_of(server).stats().running == 1, "the first one goes on"
    shared = [step for step in engine_of(server).recent_steps() if step.decoding == 2]
    assert len(shared) >= 4


def test_a_model_that_answers_stays_and_is_the_one_that_was_asked_for(tmp_path: Path) -> None:
    """Two models, and memory for one of them. Their names differ, and their prompts: a template of its own each."""
    names, sources = ("a", "b"), []
    for name in names:
        template = tmp_path / f"{name}.jinja"
        template.write_text(CHATML.replace("assistant\n", f"assistant {name}\n"))
        sources.append(tiny_source(name, template))
    memory = sources[0].planned_memory().full
    with running_server(lambda: ModelPool(sources, memory_bytes=memory * 3 // 2)) as server:

        def asked(name: str) -> Answer:
            return ask(server, CHAT, Question("Who", model=name, max_tokens=4))

        with ThreadPoolExecutor(6) as threads:
            told = list(threads.map(asked, ["a"] * 6))
        assert len({answer.text for answer in told}) == 1 and told[0].model == "a"
        assert server.do(lambda: [m.source.meter.loads for m in server.pool.models]) == [1, 0], "once for all six"
        body = CHAT.body(Question("Long", model="a", max_tokens=300, stream=True)) | {"ignore_eos": True}
        with server.http.stream("POST", CHAT.path, json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            refused = server.http.post(CHAT.path, json=CHAT.body(Question("Who", model="b")))
            assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
            assert "a (" in refused.json()["error"]["message"] and "in use" in refused.json()["error"]["message"]
            assert CHAT.answer(lines, stream=True).completion == 300, "it went on"
        other = asked("b")
        assert other.model == "b" and other.text != told[0].text, "another template, another answer"
        assert server.do(lambda: [model.state for model in server.pool.models]) == ["cold", "loaded"]
        assert server.http.post(CHAT.path, json=CHAT.body(Question("Who", model="c"))).status_code == 404
        assert asked("a").text == told[0].text


def test_a_template_runs_no_code(tmp_path: Path) -> None:
    """It is text from a download, and knows nothing but its variables."""
    template, proof = tmp_path / "evil.jinja", tmp_path / "proof"
    reach = "cycler.__init__.__globals__['os'].system"
    template.write_text(f"{{{{ {reach}('touch {proof}') }}}}{CHATML}")
    with running_server(lambda: ModelPool([tiny_source(template=template)])) as server:
        answer = server.http.post(CHAT.path, json=CHAT.body(Question("hi")))
        assert answer.status_code == 400 and "unsafe" in answer.json()["error"]["message"], answer.text
        assert not proof.exists()
        assert ask(server, COMPLETIONS, Question("hi")).finish == "length"

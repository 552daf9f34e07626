"""The log: a line for each request, without what users write."""

import json
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.request_log import LOG, JsonLines
from mlxr.server.settings import ServerSettings
from mlxr_tests.running_server import RunningServer, running_server, tiny_source

SECRET = "the fox is blue"


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonLines())
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))

    def take(self, count: int = 1) -> list[dict[str, Any]]:
        until = time.monotonic() + 30
        while len(self.texts) < count and time.monotonic() < until:
            time.sleep(0.005)
        texts, self.texts = self.texts, []
        assert len(texts) == count
        return [json.loads(text) for text in texts]


@pytest.fixture
def lines(server: RunningServer) -> Iterator[Lines]:
    server.await_quiet()  # a stream of the test before may still have to log its line
    handler, level = Lines(), LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    yield handler
    LOG.removeHandler(handler)
    LOG.setLevel(level)


def test_a_line_tells_of_a_request_without_its_text(server: RunningServer, lines: Lines) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    body = {"model": "tiny", "prompt": SECRET, "max_tokens": 4, "ignore_eos": True, "n": 2}
    usage = server.http.post(
        "/v1/completions", json=body, headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    ).json()["usage"]
    server.http.get("/health")
    (line,) = lines.take()
    assert SECRET not in json.dumps(line)
    spent = line.pop("spent_ms")
    assert line["time"].endswith("Z") and 0 < line.pop("first_token_ms") < line["ms"]
    assert sum(spent.values()) == pytest.approx(line.pop("ms"), abs=0.1) and line.pop("slowest") == next(iter(spent))
    assert 0 < line.pop("missed_tokens") <= line["prompt_tokens"]
    line.pop("differs_at")
    assert line | {"time": ""} == {
        "time": "",
        "level": "info",
        "event": "request",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "request_id": line["request_id"],
        "model": "tiny",
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": line["cached_tokens"],
        "completion_tokens": 8,
        "finish_reasons": ["length", "length"],
        "trace_id": trace,
    }


def test_clients_find_the_line_of_a_request_by_its_name(server: RunningServer, lines: Lines) -> None:
    messages: Any = [{"role": "user", "content": "Hi"}]
    for client in (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0).chat.completions,
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0).messages,
    ):
        told = client.create(model="tiny", messages=messages, max_tokens=1)
        (line,) = lines.take()
        assert told._request_id == line["request_id"]
        with pytest.raises((openai.NotFoundError, anthropic.NotFoundError)) as raised:
            client.create(model="none", messages=messages, max_tokens=1)
        (line,) = lines.take()
        assert raised.value.request_id == line["request_id"] != told._request_id
    for given, taken in (("from-a-proxy:7", True), ("two words", False), ("x" * 200, False)):
        answer = server.http.get("/v1/models", headers={"x-request-id": given})
        (line,) = lines.take()
        assert answer.headers["x-request-id"] == answer.headers["request-id"] == line["request_id"]
        assert (line["request_id"] == given) == taken


def test_an_answer_says_what_of_its_schema_is_not_enforced(server: RunningServer, lines: Lines) -> None:
    schema = {"type": "object", "properties": {"ü": {"items": {"type": "string"}, "uniqueItems": True}}}

    def ask(**others: object) -> Any:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **others}}
        body = {"model": "tiny", "prompt": "a", "max_tokens": 2, "response_format": form}
        return server.http.post("/v1/completions", json=body)

    told = ask().headers["x-mlxr-not-enforced"]
    assert told == r"response_format.json_schema.schema: uniqueItems (#/properties/\u00fc)"
    refused = ask(strict=True)
    assert refused.status_code == 400 and "x-mlxr-not-enforced" not in refused.headers
    assert "keywords that cannot be enforced: uniqueItems (#/properties/ü)" in refused.json()["error"]["message"]
    del schema["properties"]["ü"]["uniqueItems"]
    for others in ({}, {"strict": True}):
        assert ask(**others).status_code == 200 and "x-mlxr-not-enforced" not in ask(**others).headers


def test_an_answer_says_what_was_passed_over(server: RunningServer, lines: Lines) -> None:
    told = ["metadata", "prompt_cache_key", "service_tier"]
    warnings = [f"{name} is without effect: this server has no such service" for name in told]
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    chat: Any = {"model": "tiny", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 2}
    chat |= {"metadata": {"a": SECRET}, "prompt_cache_key": SECRET, "service_tier": "flex", "store": False}
    raw = client.chat.completions.with_raw_response.create(**chat)
    whole = raw.parse().to_dict()
    assert sorted(whole["warnings"]) == warnings and raw.headers["x-mlxr-warnings"] == "; ".join(whole["warnings"])
    first, *others = [chunk.to_dict() for chunk in client.chat.completions.create(**chat, stream=True)]
    assert sorted(first["warnings"]) == warnings and not any("warnings" in chunk for chunk in others)
    text: Any = {"model": "tiny", "prompt": SECRET, "max_tokens": 2, "extra_body": {"metadata": {"a": "b"}}}
    assert client.completions.create(**text, stream=False).to_dict()["warnings"] == warnings[:1]
    first, *others = [chunk.to_dict() for chunk in client.completions.create(**text, stream=True)]
    assert first["warnings"] == warnings[:1] and not any("warnings" in chunk for chunk in others)
    ask: Any = {"model": "tiny", "input": SECRET, "max_output_tokens": 20, "service_tier": "flex"}
    assert client.responses.create(**ask).to_dict()["warnings"] == warnings[2:]
    events = list(client.responses.create(**ask, stream=True))
    assert [event.response.to_dict()["warnings"] for event in events if hasattr(event, "response")] == [
        warnings[2:]
    ] * 3
    assert [sorted(line["warnings"]) for line in lines.take(6)] == [warnings] * 2 + [warnings[:1]] * 2 + [
        warnings[2:]
    ] * 2
    plain = server.http.post(
        "/v1/completions", json={"model": "tiny", "prompt": "a", "metadata": None, "service_tier": "auto"}
    )
    (line,) = lines.take()
    assert "x-mlxr-warnings" not in plain.headers and "warnings" not in plain.json().keys() | line.keys()


def test_what_is_refused_and_who_leaves(server: RunningServer, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    server.http.post("/v1/completions", json={"model": "tiny", "prompt": SECRET, SECRET: 1})
    (line,) = lines.take()
    assert (line["status"], line["level"], "model" in line) == (400, "warning", False)
    assert line["error"] == "unknown_field" and SECRET not in json.dumps(line)
    assert line["message"] == "... is not a field that is supported: leave it out"
    long = {"model": "tiny", "prompt": [5] * 600, "stream": True}
    server.http.post("/v1/completions", json=long)
    (line,) = lines.take()
    assert (line["status"], line["error"]) == (400, "context_length_exceeded")
    has_left, core = threading.Event(), server.do(lambda: server.pool.find("tiny").loaded).engine.model.core
    fast = core.step

    def step() -> Any:
        """Else the answer may have ended before this thread leaves, or the server sees it."""
        if core.stats().generated_tokens > before + 1:
            has_left.wait(30)
            time.sleep(0.03)
        return fast()

    before = core.stats().generated_tokens
    monkeypatch.setattr(core, "step", step)
    body = {"model": "tiny", "prompt": SECRET, "max_tokens": 400, "ignore_eos": True}
    with server.http.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
        next(stream.iter_bytes())
    has_left.set()
    (line,) = lines.take()
    assert line["client_gone"] and line["finish_reasons"] == [] and line["first_token_ms"] > 0
    assert line["prompt_tokens"] > 0 and 0 < line["completion_tokens"] < 400


@pytest.mark.parametrize(
    ("path", "fields", "param", "message"),
    [
        (
            "chat/completions",
            {"max_tokens": -5},
            None,
            "max_tokens is -5, expected a whole number of at least 1",
        ),
        ("chat/completions", {"messages": [{"role": SECRET}]}, "messages[0].role", "messages[0].role: "),
        ("chat/completions", {"messages": [{"role": "user", SECRET: 1}]}, "messages[0]....", "messages[0]...."),
        ("chat/completions", {"tool_choice": {"type": "function", "function": {"name": SECRET}}}, None, "tool_choice"),
        ("chat/completions", {"model": SECRET}, "model", "there is no model ..."),
        ("chat/completions", {"chat_template_kwargs": {"messages": SECRET}}, None, "messages is not a variable"),
        ("chat/completions", {"response_format": {"type": SECRET}}, None, "response_format"),
        ("completions", {"logit_bias": {SECRET: 1}}, None, "logit_bias"),
        ("completions", {"stop": [SECRET] * 99}, "stop", "stop: list should have at most 64 items"),
        ("completions", {"guided_regex": f"({SECRET}"}, None, ""),
        ("completions", {"guided_grammar": f"root ::= {SECRET}"}, None, ""),
        ("completions", {"guided_json": {"type": SECRET}}, None, ""),
        ("completions", {"guided_json": {"properties": {SECRET: {"uniqueItems": True}}}, "strict": True}, None, ""),
    ],
)
def test_a_line_says_what_was_refused_without_quoting_it(
    server: RunningServer, lines: Lines, path: str, fields: dict[str, Any], param: str | None, message: str
) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 2}
    if path == "completions":
        body["prompt"] = body.pop("messages")[0]["content"]
    answer = server.http.post(f"/v1/{path}", json=body | fields)
    (line,) = lines.take()
    assert answer.status_code == line["status"] >= 400
    assert line["message"].startswith(message) and len(line["message"]) > 5
    assert param is None or line["param"] == param
    assert not any(word in json.dumps(line) for word in ("fox", "blue"))


def test_texts_are_logged_if_asked_for(lines: Lines) -> None:
    with running_server(lambda: ModelPool([tiny_source()]), ServerSettings(log_text=True)) as own:
        body = {"model": "tiny", "prompt": SECRET, "max_tokens": 4}
        text = own.http.post("/v1/completions", json=body).json()["choices"][0]["text"]
        wrong = own.http.post("/v1/completions", json=body | {SECRET: 1}).json()["error"]["message"]
    line, refused = lines.take(2)
    assert json.loads(line["body"]) == body and line["answers"] == [text]
    assert refused["message"] == wrong and SECRET in wrong

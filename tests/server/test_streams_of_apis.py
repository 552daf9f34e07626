"""Streams of the APIs that end before their time: the client goes, or the engine fails."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest

from mlxr.runtime.engine.engine_thread import EngineThread
from mlxr.runtime.engine.errors import EngineError
from mlxr.server.anthropic import messages
from mlxr.server.chat.answer import AnswerEvent
from mlxr.server.ollama import chat
from mlxr.server.openai import chat as openai_chat
from mlxr.server.openai import responses
from mlxr.server.pool import served_engine
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.settings import ServerSettings
from mlxr_tests.running_server import HERMES, RunningServer, running_server, tiny_source
from mlxr_tests.scripted_answer import scripted_answer

HELLO: list[Any] = [{"role": "user", "content": "Hello there"}]
NEW_STORY = {"type": "object", "properties": {"story": {"type": "string", "minLength": 300}}, "required": ["story"]}
STORY: dict[str, Any] = {"output_config": {"format": {"type": "json_schema", "schema": NEW_STORY}}}
LONG: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 400, "ignore_eos": True},
    "/v1/messages": {
        "messages": HELLO,
        "max_tokens": 400,
        **STORY,
    },
    "/v1/responses": {
        "input": "Hello there",
        "text": {"format": {"type": "json_schema", "name": "x", "schema": NEW_STORY}},
    },
    "/api/chat": {"messages": HELLO, "format": NEW_STORY},
    "/api/generate": {"prompt": "Hello there", "format": NEW_STORY},
}


def test_tokens_are_sent_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes within a pause is one piece, and the end of the answer does not wait for the end of the pause."""
    monkeypatch.setattr(served_engine, "_PAUSE_SECONDS", 1000.0)
    body = json.dumps({"model": "tiny", "prompt": "The fox", "max_tokens": 100, "ignore_eos": True, "stream": True})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    with running_server(lambda: ModelPool([tiny_source()])) as server:
        address, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((address, int(port)), timeout=20) as connection:
            connection.sendall(f"{head}Content-Type: application/json\r\nConnection: close\r\n\r\n{body}".encode())
            answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    left, events = answer.partition(b"\r\n\r\n")[2], []
    while size := int(left.partition(b"\r\n")[0], 16):  # the chunks that the server has sent
        _, _, left = left.partition(b"\r\n")
        events.append(left[:size].count(b"data: {"))
        left = left[size + 2 :]
    assert sum(events) > 60 and len(events) <= 4, events  # some tokens have no text


def wait_until_idle(engine: EngineThread) -> None:
    """Waits until an engine has nothing to do."""
    end = time.monotonic() + 10
    while (stats := engine.stats()).running + stats.waiting:
        assert time.monotonic() < end, "the answer goes on without its client"
        time.sleep(0.01)


async def failing_answer(model: Any, job: Any, **options: Any) -> AsyncGenerator[AnswerEvent]:
    """The first tokens of an answer, and a failure."""
    async for piece in scripted_answer(model, job):
        if piece.deltas and piece.has_tool_calls:
            raise EngineError("the engine was closed")
        yield piece


async def slow_answer(model: Any, job: Any, **options: Any) -> AsyncGenerator[AnswerEvent]:
    """An answer that takes long to begin, as after a long prompt."""
    await asyncio.sleep(0.3)
    async for piece in scripted_answer(model, job):
        yield piece


def test_silent_streams_are_kept_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (messages, openai_chat, responses, chat):
        monkeypatch.setattr(module, "answer", slow_answer)
    (tmp_path / "hermes.jinja").write_text(HERMES)
    source = tiny_source("tools", template=tmp_path / "hermes.jinja")
    with running_server(lambda: ModelPool([source]), ServerSettings(alive_seconds=0.05)) as server:
        server.http.post("/api/generate", json={"model": "tools"}).raise_for_status()
        texts = {
            path: server.http.post(path, json=body | {"model": "tools", "stream": True}).text
            for path, body in LONG.items()
            if path != "/api/generate"
        }
        with (
            anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client,
            client.messages.stream(model="tools", messages=HELLO, max_tokens=9) as stream,
        ):
            assert stream.get_final_message().stop_reason == "tool_use"
    assert texts["/v1/messages"].startswith("event: ping\n")
    assert all(texts[path].startswith(": alive\n") for path in ("/v1/chat/completions", "/v1/responses"))
    assert all(json.loads(line) for line in texts["/api/chat"].splitlines()), "lines of JSON have no room for comments"


@pytest.mark.parametrize("path", LONG)
def test_a_client_that_goes_cancels_its_request(server: RunningServer, path: str) -> None:
    server.http.post("/api/generate", json={"model": "tiny"}).raise_for_status()
    engine = server.do(lambda: server.pool.find("tiny").loaded.engine)
    before = engine.stats().generated_tokens
    for _ in range(3):
        with server.http.stream("POST", path, json=LONG[path] | {"model": "tiny", "stream": True}) as answer:
            assert answer.status_code == 200, answer.read()
            next(answer.iter_raw())
    wait_until_idle(engine)
    assert engine.stats().generated_tokens - before < 3 * 300


def test_clients_that_wait_no_longer_cancel_their_requests(server: RunningServer) -> None:
    server.http.post("/api/generate", json={"model": "tiny"}).raise_for_status()
    engine = server.do(lambda: server.pool.find("tiny").loaded.engine)
    before, seconds = engine.stats().generated_tokens, 0.05
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=seconds) as of_openai,
        pytest.raises(openai.APITimeoutError),
    ):
        of_openai.completions.create(model="tiny", prompt="Hi", max_tokens=490, n=4, extra_body={"ignore_eos": True})
    with (
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=seconds) as of_anthropic,
        pytest.raises(anthropic.APITimeoutError),
    ):
        of_anthropic.messages.create(model="tiny", messages=HELLO, max_tokens=400, extra_body=STORY)
    with pytest.raises(httpx.ReadTimeout):
        ollama.Client(host=server.url, timeout=seconds).chat("tiny", HELLO, format=NEW_STORY)
    wait_until_idle(engine)
    assert engine.stats().generated_tokens - before < 4 * 490


def test_failures_in_mid_stream_are_told(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (messages, openai_chat, responses, chat):
        monkeypatch.setattr(module, "answer", failing_answer)
    with (
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client,
        pytest.raises(anthropic.APIStatusError, match="the engine was closed"),
        client.messages.stream(model="tools", messages=HELLO, max_tokens=9) as stream,
    ):
        stream.until_done()
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client_of_openai:
        last = list(client_of_openai.responses.create(model="tools", input="Hello there", stream=True))[-1]
        with pytest.raises(openai.APIError, match="the engine was closed"):
            list(client_of_openai.chat.completions.create(model="tools", messages=HELLO, stream=True))
    assert last.type == "response.failed" and last.response.error is not None
    assert (last.response.status, last.response.error.message) == ("failed", "the engine was closed")
    with pytest.raises(ollama.ResponseError, match="the engine was closed"):
        list(ollama.Client(host=server.url).chat("tools", HELLO, stream=True))

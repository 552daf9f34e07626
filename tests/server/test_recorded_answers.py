"""The bytes that clients get, whole and in streams, as they were recorded: names, order, spaces and escapes.

The answers are scripted, so that they have everything that there can be in one. After an intended change:
`pytest tests/server/test_recorded_answers.py --update-golden`, and read the diff.
"""

import re
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxr.runtime.engine.completion import Completion, Event, TokenLogprob
from mlxr.server.anthropic import messages
from mlxr.server.chat.answer import AnswerEvent
from mlxr.server.chat.delta import ContentDelta, Delta, ReasoningDelta, ToolArguments, ToolStart
from mlxr.server.ollama import chat as ollama_chat
from mlxr.server.ollama import embed as ollama_embed
from mlxr.server.openai import chat as openai_chat
from mlxr.server.openai import completions, embeddings, responses
from mlxr_tests.running_server import RunningServer

RECORDED = Path(__file__).parents[1] / "goldens/server_answers.txt"
SCRIPT: Sequence[Sequence[Delta]] = (
    [ReasoningDelta("Let me ")],
    [],
    [ReasoningDelta("see.")],
    [ContentDelta('I "look"\n'), ContentDelta("ít up \U0001f98a.")],
    [ToolStart(0, "call_a", "weather")],
    [ToolArguments(0, '{"city": "Ró')],
    [ToolArguments(0, 'me"}'), ToolStart(1, "call_b", "note")],
    [ToolArguments(1, '{"input": "a \\"wo')],
    [ToolArguments(1, 'rd\\" é"}'), ToolStart(2, "call_c", "time")],
    [ToolArguments(2, "{}")],
)
LOGPROBS = TokenLogprob(70, -0.25, ((71, -0.0000125), (70, -0.25), (300, float("-inf"))))
ASKED: list[Any] = [{"role": "user", "content": "Hi"}]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
FUNCTIONS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("weather", "time")
]
CHAT: dict[str, Any] = {"messages": ASKED, "tools": [*FUNCTIONS, {"type": "custom", "custom": {"name": "note"}}]}
RESPONSES: dict[str, Any] = {
    "input": "Hi",
    "metadata": {"a": "é"},
    "include": ["reasoning.encrypted_content"],
    "tools": [{"type": "function", "name": "weather", "parameters": SCHEMA}, {"type": "custom", "name": "note"}],
}
SHELLS: dict[str, Any] = {
    "input": "Hi",
    "tools": [{"type": "local_shell"}, {"type": "shell"}, {"type": "apply_patch"}],
    "store": False,
}
MESSAGES: dict[str, Any] = {"messages": ASKED, "max_tokens": 99, "metadata": {"user_id": "u"}}
LOGS = {"logprobs": True, "top_logprobs": 2}
USAGE = {"stream_options": {"include_usage": True}}
RUNNING = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
BOTH: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {"messages": ASKED, "logprobs": True, "top_logprobs": 3}),
    ("/v1/chat/completions", {"messages": ASKED, "include_reasoning": False, "user": "u"}),
    ("/v1/completions", {"prompt": ["Hi", "Ho"], "n": 2}),
    ("/v1/completions", {"prompt": "Hi", "logprobs": 3, "user": "u"}),
    ("/v1/completions", {"prompt": "Hi", "echo": True}),
    ("/v1/responses", RESPONSES),
    ("/v1/responses", SHELLS),
    ("/v1/messages", MESSAGES),
    ("/v1/messages", MESSAGES | {"thinking": {"type": "adaptive", "display": "omitted"}}),
    ("/v1/messages", MESSAGES | {"max_tokens": 0}),
    ("/api/chat", {"messages": ASKED, "tools": FUNCTIONS, "truncate": True}),
    ("/api/chat", {"messages": ASKED, **LOGS}),
    ("/api/generate", {"prompt": "Hi", "shift": True}),
    ("/api/generate", {"prompt": "Hi", **LOGS}),
)
ONCE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", CHAT | {"stream": True} | USAGE),
    ("/v1/chat/completions", {"messages": ASKED, "stream": True} | RUNNING),
    ("/v1/chat/completions", {"messages": ASKED, "n": 0}),
    ("/v1/completions", {"prompt": "Hi", "stream": True} | USAGE),
    ("/v1/completions", {"prompt": "Hi", "stream": True} | RUNNING),
    ("/v1/completions", {"prompt": "Hi", "echo": True, "logprobs": 2, "max_tokens": 0}),
    ("/v1/responses/input_tokens", {"input": "Hi"}),
    ("/v1/embeddings", {"input": ["Hi", "Ho"]}),
    ("/v1/embeddings", {"input": "Hi", "encoding_format": "base64"}),
    ("/v1/messages/count_tokens", {"messages": ASKED, "speed": "fast"}),
    ("/v1/messages", {"messages": ASKED}),
    ("/v1/messages", MESSAGES | {"thread": {"id": "x"}}),
    ("/api/chat", {}),
    ("/api/chat", {"messages": 1}),
    ("/api/generate", {"keep_alive": 0}),
    ("/api/embed", {"input": ["Hi", "Ho"]}),
    ("/api/embed", {}),
    ("/api/embeddings", {"prompt": "Hi"}),
    ("/api/embeddings", {}),
    ("/api/show", {}),
    ("/api/pull", {}),
    ("/tokenize", {"prompt": "Hi there", "return_token_strs": True}),
    ("/detokenize", {"tokens": [70, 71]}),
)
GOT = ("/v1/models", "/v1/models/tools", "/api/tags", "/api/version", "/tokenizer_info?model=tools", "/v1/none")
GOT_OF_SERVER = ("/health", "/ready", "/version", "/server_info")
CHANGING = (
    (rb"[0-9a-f]{32}", b"ID"),
    (rb'("created(?:_at)?":)\d+', rb"\g<1>0"),
    (rb"\d{4}-\d\d-\d\dT[0-9:.]+Z", b"TIME"),
    (rb'(_duration":)\d+', rb"\g<1>0"),
    (rb"mlxr-\d[^\"]*", b"mlxr-VERSION"),
    (rb'("(?:version|mlxr)":")[^"]*', rb"\g<1>VERSION"),
    (rb'("(?:digest|size)":)[^,]*', rb"\g<1>0"),
)
"""What is another one each time, or in each version."""


def scripted(script: Sequence[Sequence[Delta]]) -> Any:
    """Takes the place of `answer`; tokens have log probabilities if they are asked for."""

    async def answer(model: Any, job: Any, **options: Any) -> AsyncGenerator[AnswerEvent]:
        completion = Completion(10, cached_tokens=4, token_ids=[1] * len(script), finish_reason="stop")
        logprob = None if job.sampling.logprobs is None else LOGPROBS
        has_called = False
        for number, deltas in enumerate(script):
            end = completion if number == len(script) - 1 else None
            reason = end and end.finish_reason
            has_called |= any(isinstance(delta, ToolStart) for delta in deltas)
            yield AnswerEvent(0, list(deltas), Event(0, 1, "", reason, logprob, end, cached_tokens=4), has_called)

    return answer


async def events(index: int, job: Any) -> AsyncGenerator[Event]:
    """A text, as `/v1/completions` continues one."""
    logprob = None if job.logprobs is None else LOGPROBS
    completion = Completion(3, cached_tokens=1, token_ids=[70, 71], text="a é", finish_reason="length")
    completion.prompt_logprobs = [LOGPROBS] if logprob else []
    yield Event(index, 70, 'a "', None, logprob)
    yield Event(index, 71, "é\n", "length", logprob, completion)


async def two_each(job: Any) -> AsyncGenerator[Event]:
    """Both texts of a prompt."""
    for index in range(job.sampling.n):
        async for event in events(index, job):
            yield event


SHELL_CALLS = [
    [ToolStart(0, "a", "local_shell"), ToolArguments(0, '{"command": ["ls"], "working_directory": "/é"}')],
    [ToolStart(1, "b", "shell"), ToolArguments(1, '{"commands": ["ls", "pwd"], "timeout_ms": 5}')],
    [ToolStart(2, "c", "apply_patch"), ToolArguments(2, '{"type": "update_file", "path": "a", "diff": "+b"}')],
    [ToolStart(3, "d", "apply_patch"), ToolArguments(3, '{"type": "delete_file", "path": "a"}')],
    [ToolStart(4, "e", "other"), ToolArguments(4, "no JSON")],
]


def recorded(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """All answers, with what was asked above each."""

    async def answer(model: Any, job: Any, **options: Any) -> AsyncGenerator[AnswerEvent]:
        is_shell = any(tool["function"]["name"] == "shell" for tool in job.tools)
        async for piece in scripted(SHELL_CALLS if is_shell else SCRIPT)(model, job, **options):
            yield piece

    async def vectors(model: Any, prompts: Sequence[list[int]], **options: Any) -> list[Any]:
        return [np.array([0.5, -0.25, index], np.float32) for index in range(len(prompts))]

    for module in (messages, openai_chat, responses, ollama_chat):
        monkeypatch.setattr(module, "answer", answer)
    monkeypatch.setattr("mlxr.server.ollama.generate.answer", answer)
    monkeypatch.setattr(completions, "_events", lambda model, job: [two_each(job) for _ in job.ids])
    for module in (ollama_embed, embeddings):
        monkeypatch.setattr(module, "embed", vectors)
    asked = [(path, body | {"stream": stream}) for path, body in BOTH for stream in (False, True)]
    told = []
    for path, body in [*asked, *ONCE]:
        reply = server.http.post(path, json={"model": "tools"} | body)
        kept = {name: value for name, value in body.items() if name not in ("tools", "messages")}
        told.append(f"==== {path} {kept}: {reply.status_code}\n".encode() + reply.content)
    for path in (*GOT, *GOT_OF_SERVER):
        reply = server.http.get(path)
        told.append(f"==== {path}: {reply.status_code}\n".encode() + reply.content)
    text = b"\n".join(told)
    for pattern, replacement in CHANGING:
        text = re.sub(pattern, replacement, text)
    return text.decode()


def test_bytes(server: RunningServer, monkeypatch: pytest.MonkeyPatch, update_golden: bool) -> None:
    text = recorded(server, monkeypatch)
    if update_golden:
        RECORDED.write_text(text, encoding="utf-8")
    assert text.splitlines() == RECORDED.read_text(encoding="utf-8").splitlines()

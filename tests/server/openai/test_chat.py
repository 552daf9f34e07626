"""/v1/chat/completions, as OpenAI's own client sees it."""

import json
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

import mlxr
from mlxr.runtime.engine.default_sampling import USUAL
from mlxr.server.chat.delta import Delta, ToolArguments, ToolStart
from mlxr.server.openai import chat
from mlxr.server.openai.chat_request import ChatRequest, job_of
from mlxr_tests.running_server import EXACT, RunningServer
from mlxr_tests.scripted_answer import answering
from mlxr_tests.storyteller import TINY

HELLO: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello there"}]
RENDERED = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def model() -> Iterator[mlxr.Model]:
    with mlxr.load(TINY, host="cpu", threads=1, changes=EXACT) as loaded:
        yield loaded


def ids(model: mlxr.Model, text: str) -> list[int]:
    return model.require_tokenizer().encode(text, add_special=False, parse_special=True)


def test_an_answer_is_what_the_library_gives(client: openai.OpenAI, model: mlxr.Model) -> None:
    told = client.chat.completions.create(model="tiny", messages=HELLO, seed=7, max_tokens=12, temperature=0.9)
    sampling = mlxr.Sampling(**USUAL | {"temperature": 0.9}, seed=7, max_tokens=12)
    expected = model.generate(ids(model, RENDERED), sampling=sampling)
    assert told.choices[0].message.content == expected.text
    assert told.choices[0].finish_reason == "length" and told.choices[0].message.role == "assistant"
    assert told.usage is not None and told.model == "tiny" and told.object == "chat.completion"
    assert (told.usage.prompt_tokens, told.usage.completion_tokens) == (len(ids(model, RENDERED)), 12)


def test_streams_are_the_same_answer_in_pieces(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": HELLO, "seed": 3, "max_tokens": 16, "n": 2}
    whole = client.chat.completions.create(**options, logprobs=True, top_logprobs=2)
    chunks = list(
        client.chat.completions.create(
            **options, logprobs=True, top_logprobs=2, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].choices == [] and chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 32
    assert all(chunk.usage is None for chunk in chunks[:-1])
    for index in range(2):
        own = [c.choices[0] for c in chunks[:-1] if c.choices[0].index == index]
        assert own[0].delta.role == "assistant" and [c.delta.role for c in own[1:]] == [None] * (len(own) - 1)
        assert [c.finish_reason for c in own] == [None] * (len(own) - 1) + ["length"]
        assert "".join(c.delta.content or "" for c in own) == whole.choices[index].message.content
        told = [token for c in own if c.logprobs for token in c.logprobs.content or []]
        assert whole.choices[index].logprobs is not None and told == whole.choices[index].logprobs.content
        assert len(told) == 16 and all(len(token.top_logprobs) == 2 for token in told)


def test_json_of_a_schema(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]} | {
        "additionalProperties": False
    }
    told = client.chat.completions.create(
        model="tiny",
        messages=HELLO,
        seed=1,
        max_tokens=100,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}},
    )
    if told.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(told.choices[0].message.content or "")["age"], int)
    assert (told.choices[0].message.content or "").lstrip().startswith("{")
    chosen = client.chat.completions.create(
        model="tiny", messages=HELLO, seed=1, extra_body={"guided_choice": ["yes", "no"]}
    )
    assert chosen.choices[0].message.content in {"yes", "no"} and chosen.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("colour", "red", "colour is not a field that is supported: leave it out"),
        ("functions", [{"name": "f"}], "functions is not supported: use tools"),
        ("temperature", 300, "temperature is 300"),
        ("temperature", "1", "temperature: input should be a valid number"),
        ("top_logprobs", 3, "top_logprobs needs logprobs"),
        ("max_completion_tokens", 5, "max_tokens and max_completion_tokens are given"),
        ("n", 1000, "1000 answers are asked for, and this server gives 128"),
        ("tool_choice", "required", "tool_choice needs tools"),
        ("messages", [], "messages: list should have at least 1 item"),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "takes text only"),
        (
            "messages",
            [*HELLO, {"role": "tool", "tool_call_id": "c", "content": [{"type": "image_url", "image_url": {}}]}],
            'messages[2].content[0]: type is "image_url"',
        ),
        (
            "messages",
            [{"role": "assistant", "tool_calls": [{"id": "c"}]}],
            "messages[0].tool_calls[0].function is missing",
        ),
        ("tools", [{"type": "computer"}], 'tools[0]: type is "computer"'),
        ("tools", [{"type": "function", "function": {"name": "f"}, "defer_loading": True}], "tools[0].defer_loading"),
        ("response_format", {"type": "json_schema"}, "response_format.json_schema is missing"),
        ("logit_bias", {"x": 1}, "expected token ids"),
        ("stream_options", {"include_usage": True}, "stream_options is for streams"),
        ("model", "gpt-4", "there is no model 'gpt-4' here; this server has: tiny, plain"),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_name(
    server: RunningServer, field: str, value: Any, message: str
) -> None:
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 4} | {field: value}
    answer = server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == (404 if field == "model" else 400)
    assert message in answer.json()["error"]["message"]


def test_errors_have_the_classes_that_clients_know(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-4'"):
        client.chat.completions.create(model="gpt-4", messages=HELLO)
    for count in (3000, 1_200_000):
        with pytest.raises(openai.BadRequestError) as raised:
            client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "word " * count}])
        assert raised.value.code == "context_length_exceeded"
    with pytest.raises(
        openai.APIStatusError, match=r"the body has more than 8388608 bytes.*larger --max-body"
    ) as larger:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "word " * 2_000_000}])
    assert larger.value.status_code == 413
    with pytest.raises(openai.BadRequestError, match="this model cannot chat"):
        client.chat.completions.create(model="plain", messages=HELLO)


def test_a_client_that_goes_cancels_its_request(client: openai.OpenAI, server: RunningServer) -> None:
    client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=1)  # it is loaded, whatever ran before
    engine = server.do(lambda: server.pool.find("tiny").loaded.engine)
    before = engine.stats().generated_tokens
    for _ in range(3):
        stream = client.chat.completions.create(
            model="tiny", messages=HELLO, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        stream.close()
    end = time.monotonic() + 10
    while (stats := engine.stats()).running + stats.waiting:
        assert time.monotonic() < end, "the answer goes on without its client"
        time.sleep(0.01)
    assert stats.generated_tokens - before < 3 * 400


PROGRAM = 'text("a\\n"); // é🙂'
CUSTOM: list[Any] = [
    {"type": "custom", "custom": {"name": "exec", "description": "Runs a program."}},
    {"type": "function", "function": {"name": "wait", "parameters": {"type": "object", "properties": {}}}},
    {"type": "web_search"},
]


def test_custom_tools_and_those_of_services(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [("exec", json.dumps({"input": PROGRAM})), ("wait", '{"a": 1}'), ("exec", "no JSON")]
    script: list[list[Delta]] = []
    for number, (name, arguments) in enumerate(calls):
        script.append([ToolStart(number, f"call_{number}", name)])
        script += [[ToolArguments(number, sign)] for sign in arguments]
    monkeypatch.setattr(chat, "answer", answering(script))
    body: dict[str, Any] = {"model": "tools", "messages": HELLO, "tools": CUSTOM, "metadata": {"a": "b"}}
    whole = client.chat.completions.create(**body)
    told = [call.to_dict() for call in whole.choices[0].message.tool_calls or ()]
    assert told == [
        {"id": "call_0", "type": "custom", "custom": {"name": "exec", "input": PROGRAM}},
        {"id": "call_1", "type": "function", "function": {"name": "wait", "arguments": '{"a": 1}'}},
        {"id": "call_2", "type": "custom", "custom": {"name": "exec", "input": "no JSON"}},
    ]
    assert whole.choices[0].finish_reason == "tool_calls" and whole.to_dict()["warnings"] == [
        "metadata is without effect: this server has no such service",
        "tools[2] is left out: web_search is run by a service, which this server does not have",
    ]
    inputs: dict[int, str] = {}
    for part in client.chat.completions.create(**body, stream=True):
        for call in part.choices[0].delta.tool_calls or ():
            more = call.to_dict().get("custom") or call.to_dict()["function"]
            inputs[call.index] = inputs.get(call.index, "") + str(more.get("input", more.get("arguments")))
    assert inputs == {0: PROGRAM, 1: '{"a": 1}', 2: "no JSON"}
    message: Any = {"role": "assistant", "content": None, "tool_calls": told[:2]}
    results: list[Any] = [{"role": "tool", "tool_call_id": f"call_{i}", "content": "done"} for i in range(2)]
    request = ChatRequest.model_validate({**body, "messages": [*HELLO, message, *results]})
    first, second = job_of(request).messages[2]["tool_calls"]
    assert first["function"] == {"name": "exec", "arguments": {"input": PROGRAM}} and first["id"] == "call_0"
    assert second["function"] == {"name": "wait", "arguments": '{"a": 1}'}
    assert [tool["function"]["name"] for tool in job_of(request).tools] == ["exec", "wait"]


def test_a_custom_tool_must_be_called(client: openai.OpenAI) -> None:
    grammar = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "ab?"}}
    tools: Any = [{"type": "custom", "custom": {"name": "exec", "format": grammar}}]
    told = client.chat.completions.create(
        model="tools",
        messages=HELLO,
        tools=tools,
        tool_choice={"type": "custom", "custom": {"name": "exec"}},
        seed=1,
        max_tokens=150,
        reasoning_effort="none",
    )
    (call,) = told.choices[0].message.tool_calls or ()
    assert call.type == "custom" and call.custom.input in ("a", "ab")

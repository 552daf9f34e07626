"""/api/chat and /api/generate, as Ollama's own client sees them."""

import json
import time
from collections.abc import Iterator
from typing import Any

import ollama
import pytest

import mlxr
from mlxr.runtime.engine.default_sampling import USUAL
from mlxr.server.ollama import chat
from mlxr.server.ollama.chat import Message, told_messages
from mlxr.server.ollama.named_models import seconds_of
from mlxr.server.pool.model_pool import FOREVER
from mlxr_tests.running_server import EXACT, RunningServer
from mlxr_tests.scripted_answer import scripted_answer
from mlxr_tests.storyteller import TINY

HELLO: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello there"}]
RENDERED = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def client(server: RunningServer) -> ollama.Client:
    return ollama.Client(host=server.url, timeout=60)


@pytest.fixture(scope="module")
def model() -> Iterator[mlxr.Model]:
    with mlxr.load(TINY, host="cpu", threads=1, changes=EXACT) as loaded:
        yield loaded


def generated(model: mlxr.Model, text: str, *, add_special: bool = False, **options: Any) -> tuple[int, str]:
    ids = model.require_tokenizer().encode(text, add_special=add_special, parse_special=True)
    return len(ids), model.generate(ids, sampling=mlxr.Sampling(**(USUAL | options))).text


def test_an_answer_is_what_the_library_gives(client: ollama.Client, model: mlxr.Model) -> None:
    told = client.chat("tiny:latest", HELLO, options={"seed": 7, "num_predict": 12})
    num_tokens, text = generated(model, RENDERED, seed=7, max_tokens=12)
    assert (told.message.content, told.message.role, told.done_reason) == (text, "assistant", "length")
    assert (told.prompt_eval_count, told.eval_count, told.done) == (num_tokens, 12, True)
    durations = [told.total_duration, told.load_duration, told.prompt_eval_duration, told.eval_duration]
    assert all(isinstance(ns, int) for ns in durations) and (told.total_duration or 0) > 1000
    other = client.chat("tiny", HELLO, options={"temperature": 0, "repeat_penalty": 1, "num_predict": 12})
    assert other.message.content == generated(model, RENDERED, temperature=0, repetition_penalty=1, max_tokens=12)[1]


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ({"repeat_last_n": 5}, {"repetition_range": 5}),
        ({"repeat_last_n": -1}, {"repetition_range": 0}),
        ({"repeat_last_n": 0}, {"repetition_penalty": 1.0}),
        ({}, {"repetition_range": 64}),
    ],
)
def test_how_far_back_repetition_counts(
    client: ollama.Client, model: mlxr.Model, options: dict[str, Any], meant: dict[str, Any]
) -> None:
    """-1 is all that there is, 0 nothing, and Ollama's usual number is 64."""
    told = client.chat("tiny", HELLO, options={"repeat_penalty": 1.3, "temperature": 0, "num_predict": 48} | options)
    expected = {"repetition_penalty": 1.3, "temperature": 0, "max_tokens": 48} | meant
    assert told.message.content == generated(model, RENDERED, **expected)[1]


def test_what_other_clients_send_is_read(server: RunningServer) -> None:
    """`curl -d` calls JSON a form, and the client in Go sends each field, empty ones as well."""
    fields: dict[str, Any] = {"model": "tiny", "options": None, "template": "", "system": ""}
    short = {"options": {"num_predict": 4}}
    for path, more in (
        ("generate", {"prompt": "Once", "suffix": "", "stream": False}),
        ("chat", {"messages": [{"role": "user", "content": "x"}], "stream": False} | short),
        ("show", {"name": "", "verbose": False}),
    ):
        told = {name: value for name, value in fields.items() if path != "chat" or name == "model"} | more
        for headers, options in (({"content-type": "application/x-www-form-urlencoded"}, short), ({}, {})):
            answer = server.http.post(f"/api/{path}", content=json.dumps(told | options), headers=headers)
            assert answer.status_code == 200, answer.text


def test_what_vercels_provider_sends_beside_options_means_what_it_says(server: RunningServer) -> None:
    """ollama-ai-provider-v2 puts these fields there, where Ollama itself never reads them."""
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}

    def message(**fields: Any) -> Any:
        body = {"model": "tools", "messages": HELLO, "stream": False, "think": False} | fields
        answer = server.http.post("/api/chat", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["message"] | {"tokens": answer.json()["eval_count"]}

    greedy = {"temperature": 0, "num_predict": 5}
    assert message(temperature=0, max_output_tokens=5) == message(options=greedy)
    outer = {"temperature": 2, "top_p": 0.1, "max_output_tokens": 9}
    assert message(**outer, options=greedy | {"top_p": 1}) == message(options=greedy)
    for named in ({"name": "look"}, {"function": {"name": "look"}}):
        for choice in ("required", {"type": "function"} | named):
            calls = message(tools=[tool], tool_choice=choice, max_output_tokens=99)["tool_calls"]
            assert {call["function"]["name"] for call in calls} == {"look"}
    assert "tool_calls" not in message(tools=[tool], tool_choice="none", max_output_tokens=5)


def test_streams_are_the_same_answer_in_lines(client: ollama.Client, server: RunningServer) -> None:
    options = {"seed": 3, "num_predict": 16}
    whole = client.chat("tiny", HELLO, options=options, logprobs=True, top_logprobs=2)
    parts = list(client.chat("tiny", HELLO, options=options, stream=True, logprobs=True, top_logprobs=2))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert [part.done_reason for part in parts] == [None] * (len(parts) - 1) + ["length"]
    told = [token for part in parts for token in part.logprobs or []]
    assert told == whole.logprobs and len(told) == 16 and all(len(t.top_logprobs or ()) == 2 for t in told)
    answer = server.http.post("/api/chat", json={"model": "tiny", "messages": HELLO, "options": options})
    assert answer.headers["content-type"] == "application/x-ndjson", "a stream, unless the client wants none"
    assert len(answer.text.splitlines()) > 2 and json.loads(answer.text.splitlines()[-1])["eval_count"] == 16


def test_prompts_are_answered_or_continued(client: ollama.Client, model: mlxr.Model) -> None:
    options = {"seed": 1, "num_predict": 8}
    raw = "<|im_start|>user\nOnce"
    assert (
        client.generate("tiny", "Hello there", system="Be brief.", options=options).response
        == (generated(model, RENDERED, seed=1, max_tokens=8)[1])
    )
    for name in ("tiny", "plain"):
        told = client.generate(name, raw, raw=True, options=options)
        assert told.response == generated(model, raw, add_special=True, seed=1, max_tokens=8)[1]
    parts = list(client.generate("plain", "Once upon a time", options=options, stream=True))
    text = generated(model, "Once upon a time", add_special=True, seed=1, max_tokens=8)[1]
    assert "".join(part.response or "" for part in parts) == text, "without a chat template the prompt is continued"


def test_json_of_a_schema(client: ollama.Client) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    told = client.chat("tiny", HELLO, format=schema, options={"num_predict": 100, "seed": 1})
    assert json.loads(told.message.content or "")["a"] in {1, 2} and told.done_reason == "stop"
    told = client.chat("tiny", HELLO, format="json", options={"num_predict": 3})
    assert (told.message.content or "").lstrip()[:1] in '{["-0123456789tfn'


def test_stop_texts(client: ollama.Client) -> None:
    options = {"temperature": 0, "num_predict": 12}
    text = client.chat("tiny", HELLO, options=options).message.content or ""
    told = client.chat("tiny", HELLO, options=options | {"stop": [text[4:7]]})
    assert (told.message.content, told.done_reason) == (text[: text.find(text[4:7])], "stop")


def test_empty_requests_load_and_unload(client: ollama.Client) -> None:
    told = client.generate("plain", keep_alive="10m")
    assert (told.done_reason, told.response) == ("load", "")
    running = {entry.model: entry for entry in client.ps().models}
    assert running["plain"].context_length == 512 and running["plain"].expires_at is not None
    assert 9 * 60 < running["plain"].expires_at.timestamp() - time.time() < 11 * 60
    assert client.chat("plain", [], keep_alive=0).done_reason == "unload"
    assert "plain" not in {entry.model for entry in client.ps().models}


def test_what_there_is_to_know(client: ollama.Client, server: RunningServer) -> None:
    listed = client.list().models
    assert [entry.model for entry in listed] == ["tiny", "plain", "tools"]
    for entry in listed:
        assert entry.size == TINY.stat().st_size and len(bytes.fromhex(entry.digest or "")) == 32
        assert entry.details is not None and (entry.details.family, entry.details.format) == ("llama", "gguf")
        assert (entry.details.quantization_level, entry.details.parameter_size) == ("Q8_0", "1.5M")
    assert client.show("tiny").details == listed[0].details
    assert server.do(lambda: server.pool.unload("tools"))
    assert (client.show("tools").capabilities or [])[1:] == ["tools", "thinking"]
    assert "tools" not in {entry.model for entry in client.ps().models}, "nothing was loaded"
    assert client.show("plain").capabilities == ["completion"] and client.show("plain").template == ""
    shown = client.show("tiny:latest")
    assert shown.modelinfo is not None and shown.modelinfo["llama.context_length"] == 512
    assert "<|im_start|>" in (shown.template or "") and shown.capabilities is not None
    assert "completion" in shown.capabilities
    assert server.http.get("/api/version").json()["mlxr"] and server.http.head("/").status_code == 200


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colour": "red"}, "colour is not a field that is supported"),
        ({"options": {"tfs_z": 0.5}}, "options.tfs_z is 0.5, which is not supported: use min_p"),
        ({"options": {"penalize_newline": False, "repeat_penalty": 1.1}}, "options.penalize_newline is false"),
        ({"options": {"mirostat": 1}}, "options.mirostat is 1, which is not supported: use temperature"),
        ({"options": {"num_predict": 0}}, "options.num_predict is 0"),
        ({"options": {"temperature": "hot"}}, "options.temperature: input should be a valid number"),
        ({"options": {"colour": 1}}, "options.colour is not a field that is supported"),
        ({"max_output_tokens": 0}, "max_output_tokens: input should be greater than or equal to 1"),
        ({"tool_choice": "required"}, "tool_choice is 'required', and there are no tools"),
        ({"tool_choice": {"type": "function", "name": "look"}}, "tool_choice names 'look'; tools has none"),
        ({"think": -1}, "think: -1 is none of true, false, low, medium, high, max, and no number of tokens from 0"),
        ({"think": "deep"}, 'think: "deep" is none of true, false'),
        ({"keep_alive": "soon"}, 'keep_alive is "soon"; expected seconds'),
        ({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "messages[0].images is not supported"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0] is a tool's result"),
        ({"format": "xml"}, "format"),
        ({"model": "llama3"}, "there is no model 'llama3' here; this server has: tiny, plain"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_what_cannot_be_served_is_refused_by_its_name(
    server: RunningServer, changes: dict[str, Any], message: str, stream: bool
) -> None:
    body = {"model": "tiny", "messages": HELLO, "stream": stream} | changes
    answer = server.http.post("/api/chat", json=body)
    assert answer.status_code == (404 if "model" in changes else 400)
    assert message in answer.json()["error"]


def test_errors_are_those_that_clients_know(client: ollama.Client, server: RunningServer) -> None:
    with pytest.raises(ollama.ResponseError, match="the prompt has") as raised:
        next(iter(client.chat("tiny", [{"role": "user", "content": "word " * 3000}], stream=True)))
    assert raised.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="mlxr pull"):
        client.pull("llama3")
    with pytest.raises(ollama.ResponseError, match="mlxr remove"):
        client.delete("tiny")
    for field in ("template", "context", "images"):
        answer = server.http.post("/api/generate", json={"model": "tiny", "prompt": "x", field: "y"})
        assert answer.status_code == 400 and answer.json()["error"].startswith(f"{field} is not supported: ")


def test_thinking_and_calls(client: ollama.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "answer", scripted_answer)
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
    whole = client.chat("tools", HELLO, tools=[tool], think=True)
    parts = list(client.chat("tools", HELLO, tools=[tool], think="high", stream=True))
    for message in (whole.message, parts[-2].message):
        calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
        assert calls[-1:] == [("time", {})]
    assert [call.function.arguments for call in whole.message.tool_calls or []] == [{"city": "Róme"}, {}]
    assert (whole.message.thinking, whole.message.content) == ("Let me see.", "I look it up.")
    assert "".join(part.message.thinking or "" for part in parts) == "Let me see."
    assert sum(len(part.message.tool_calls or ()) for part in parts) == 2
    assert (whole.done_reason, whole.prompt_eval_count, whole.eval_count) == ("stop", 10, 8)


def test_the_model_thinks_if_it_is_told_to(client: ollama.Client) -> None:
    """A real answer: the prompt opens the thinking, and the tiny model does not end it."""
    told = client.chat("tools", HELLO, think=True, options={"num_predict": 8})
    assert told.message.thinking and not told.message.content
    told = client.chat("tools", HELLO, think=False, options={"num_predict": 8})
    assert told.message.content and not told.message.thinking


def test_results_of_tools_find_their_calls() -> None:
    """Ollama's own messages name no calls; the tool's name and the order tell."""
    calls = [{"function": {"name": name, "arguments": {"x": x}}} for x, name in enumerate(["f", "g", "f"])]
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": calls},
        {"role": "tool", "tool_name": "g", "content": "1"},
        {"role": "tool", "tool_name": "f", "content": "0"},
        {"role": "tool", "content": "2"},
    ]
    told = told_messages([Message.model_validate(message) for message in messages])
    ids = [call["id"] for call in told[0]["tool_calls"]]
    assert told[0]["reasoning_content"] == "hm" and len(set(ids)) == 3
    assert [(item["tool_call_id"], item["name"]) for item in told[1:]] == [(ids[1], "g"), (ids[0], "f"), (ids[2], "f")]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5m", 300),
        ("1h30m", 5400),
        ("250ms", 0.25),
        (0, 0),
        ("0", 0),
        (90, 90),
        (-1, FOREVER),
        ("-1m", FOREVER),
    ],
)
def test_times(text: str | int, seconds: float) -> None:
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", [1e300, 10**400, "9" * 400, "9" * 400 + "h", 4e9])
def test_times_that_no_clock_tells_are_for_ever(server: RunningServer, text: str | float) -> None:
    told = server.http.post("/api/generate", json={"model": "plain", "keep_alive": text})
    assert told.status_code == 200 and seconds_of(text) == FOREVER
    running = server.http.get("/api/ps")
    assert running.status_code == 200
    assert {model["expires_at"][:4] for model in running.json()["models"] if model["name"] == "plain"} == {"9999"}
    server.http.post("/api/generate", json={"model": "plain", "keep_alive": "5m"})

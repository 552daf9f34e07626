"""/v1/messages, as Anthropic's own client sees it."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

import mlxr
from mlxr.runtime.engine.default_sampling import USUAL
from mlxr.server.anthropic import messages
from mlxr.server.anthropic.conversation import job_of
from mlxr.server.anthropic.messages_request import MessagesRequest
from mlxr_tests.running_server import EXACT, RunningServer
from mlxr_tests.scripted_answer import scripted_answer
from mlxr_tests.storyteller import TINY

IMAGE: dict[str, Any] = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
HELLO: list[Any] = [{"role": "user", "content": "Hello there"}]
RENDERED = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n"
ASK: dict[str, Any] = {"model": "tiny", "system": "Be brief.", "messages": HELLO, "max_tokens": 12}

SCHEMA = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False}
TOOLS: list[Any] = [{"name": "pick", "description": "Picks one.", "input_schema": SCHEMA}]


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def model() -> Iterator[mlxr.Model]:
    with mlxr.load(TINY, host="cpu", threads=1, changes=EXACT) as loaded:
        yield loaded


def ids(model: mlxr.Model, text: str) -> list[int]:
    return model.require_tokenizer().encode(text, add_special=False, parse_special=True)


def test_an_answer_is_what_the_library_gives(client: anthropic.Anthropic, model: mlxr.Model) -> None:
    told = client.messages.create(**ASK, extra_body={"seed": 7, "temperature": 0.9})
    prompt = ids(model, RENDERED)
    expected = model.generate(prompt, sampling=mlxr.Sampling(**USUAL | {"temperature": 0.9}, seed=7, max_tokens=12))
    assert [block.to_dict() for block in told.content] == [{"type": "text", "text": expected.text}]
    assert (told.stop_reason, told.stop_sequence, told.role, told.model) == ("max_tokens", None, "assistant", "tiny")
    assert told.usage.input_tokens + (told.usage.cache_read_input_tokens or 0) == len(prompt)
    assert (told.usage.output_tokens, told.usage.cache_creation_input_tokens) == (12, 0)
    counted = client.messages.count_tokens(model="tiny", system="Be brief.", messages=HELLO)
    assert counted.input_tokens == len(prompt)


def test_streams_are_the_same_answer_in_pieces(server: RunningServer, client: anthropic.Anthropic) -> None:
    body: dict[str, Any] = ASK | {"extra_body": {"seed": 3}}
    client.messages.create(**body)  # after it, the prefix cache has the prompt
    whole = client.messages.create(**body)
    with client.messages.stream(**body) as stream:
        told = list(stream)
        final = stream.get_final_message()
    events = [event.type for event in told]
    same = {"content", "stop_reason", "stop_sequence", "role", "model"}
    assert final.model_dump(include=same) == whole.model_dump(include=same)
    assert final.usage == whole.usage and (whole.usage.cache_read_input_tokens or 0) > 0 < whole.usage.input_tokens
    # The client changes the usage of `message_start` as the stream goes on.
    lines = server.http.post("/v1/messages", json=ASK | {"stream": True}).text.splitlines()
    began = json.loads(next(line for line in lines if line.startswith("data:")).removeprefix("data:"))["message"]
    same = {"input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"}
    assert {name: began["usage"][name] for name in same} == whole.usage.model_dump(include=same)
    events = [event for event in events if event not in {"text", "content_block_delta"}]
    assert events == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]


def test_a_prompt_may_be_read_for_the_cache_alone(client: anthropic.Anthropic) -> None:
    text = "A prompt that nobody else sends, and that is longer than a block. " * 2
    body: dict[str, Any] = ASK | {"messages": [{"role": "user", "content": text}]}
    for stream in (False, True):
        if stream:
            with client.messages.stream(**(body | {"max_tokens": 0})) as events:
                told = events.get_final_message()
        else:
            told = client.messages.create(**(body | {"max_tokens": 0}))
        assert (told.content, told.stop_reason, told.usage.output_tokens) == ([], "max_tokens", 0)
    usage = client.messages.create(**body).usage
    assert usage.output_tokens > 0 and (usage.cache_read_input_tokens or 0) > usage.input_tokens


def test_the_stop_sequence_is_told(client: anthropic.Anthropic) -> None:
    text = client.messages.create(**ASK, extra_body={"temperature": 0}).content[0]
    assert isinstance(text, anthropic.types.TextBlock)
    stop = text.text[4:7]
    told = client.messages.create(**ASK, stop_sequences=["§", stop], extra_body={"temperature": 0})
    assert (told.stop_reason, told.stop_sequence) == ("stop_sequence", stop)
    assert [block.to_dict()["text"] for block in told.content] == [text.text[: text.text.find(stop)]]


def test_json_of_a_schema(client: anthropic.Anthropic) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    told = client.messages.create(
        **(ASK | {"max_tokens": 100}),
        output_config={"format": {"type": "json_schema", "schema": schema}},
        extra_body={"seed": 1},
    )
    assert told.stop_reason == "end_turn" and isinstance(told.content[0], anthropic.types.TextBlock)
    assert json.loads(told.content[0].text)["a"] in {1, 2}


def test_thinking_and_calls(client: anthropic.Anthropic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "answer", scripted_answer)
    body: dict[str, Any] = ASK | {"model": "tools", "tools": TOOLS}
    whole = client.messages.create(**body)
    with client.messages.stream(**body) as stream:
        events = [event for event in stream if event.type in {"content_block_start", "content_block_delta"}]
        final = stream.get_final_message()
    expected = [
        {"type": "thinking", "thinking": "Let me see.", "signature": ""},
        {"type": "text", "text": "I look it up."},
        {"type": "tool_use", "id": "call_a", "name": "weather", "input": {"city": "Róme"}},
        {"type": "tool_use", "id": "call_b", "name": "time", "input": {}},
    ]
    for told in (whole, final):
        assert [block.to_dict() for block in told.content] == expected and told.stop_reason == "tool_use"
        usage = told.usage
        assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (6, 4, 8)
        assert usage.output_tokens_details is not None and usage.output_tokens_details.thinking_tokens == 2
    assert [event.index for event in events] == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    omitted = client.messages.create(**body, thinking={"type": "adaptive", "display": "omitted"}).content[0]
    assert omitted.to_dict() == {"type": "thinking", "thinking": "", "signature": ""}


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "pick"}])
def test_a_tool_that_must_be_called_is_called(client: anthropic.Anthropic, choice: Any) -> None:
    body: dict[str, Any] = ASK | {"model": "tools", "tools": TOOLS, "max_tokens": 100}
    body |= {"tool_choice": choice | {"disable_parallel_tool_use": True}, "thinking": {"type": "disabled"}}
    body["extra_body"] = {"seed": 1}
    told = client.messages.create(**body)
    assert told.stop_reason == "tool_use"
    (call,) = told.content
    assert isinstance(call, anthropic.types.ToolUseBlock) and call.name == "pick" and call.input["x"] in {1, 2}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "done"}
    body["messages"] = [*HELLO, told.to_param(), {"role": "user", "content": [result]}]
    body["tool_choice"] = {"type": "none"}
    assert client.messages.create(**body).stop_reason in {"end_turn", "max_tokens"}


def test_a_billing_line_does_not_break_the_prefix_cache(client: anthropic.Anthropic, model: mlxr.Model) -> None:
    """Coding agents send another one each time."""
    rules = "Once upon a time there was a fox that lived in a big forest. " * 3
    cached = []
    for number in range(2):
        header = f"x-anthropic-billing-header: cc_version=2.1.{number}; cch={number}{number};"
        system: list[Any] = [{"type": "text", "text": header}, {"type": "text", "text": rules}]
        told = client.messages.create(
            model="tiny", max_tokens=1, system=system, messages=[{"role": "user", "content": f"Question {number}"}]
        )
        cached.append(told.usage.cache_read_input_tokens or 0)
    common = ids(model, f"<|im_start|>system\n{rules}<|im_end|>\n<|im_start|>user\nQuestion ")
    assert cached[1] >= len(common) - 1 > 100
    counted = client.messages.count_tokens(
        model="tiny", system=f"{header}\n{rules}", messages=[{"role": "user", "content": "Question 1"}]
    )
    assert counted.input_tokens == told.usage.input_tokens + cached[1], "a line of a longer text goes, and no more"


def test_conversations_keep_their_order_and_parts() -> None:
    conversation = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c"},
        {"role": "system", "content": "Now be brief."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "9"}]},
                {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": True},
                {"type": "text", "text": "Go on."},
            ],
        },
        {"role": "assistant", "content": "It is"},
    ]
    job = job_of(MessagesRequest.model_validate({"model": "m", "max_tokens": 1, "messages": conversation}))
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    assert job.messages == (
        {"role": "user", "content": "a\nb\nc"},
        {"role": "system", "content": "Now be brief."},
        {"role": "assistant", "content": "Let me look.", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "9"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: no"},
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": "It is"},
    )
    assert job.continue_final


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colour": "red"}, "colour is not a field that is supported"),
        ({"compaction": {"type": "auto"}}, "compaction is not supported: make the conversation shorter"),
        ({"max_tokens": -1}, "max_tokens: input should be greater than or equal to 0"),
        ({"messages": []}, "messages: list should have at least 1 item"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role: input should be 'user'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            'messages[0].content[0]: type is "image", which is not supported here',
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
            "messages[0].content[0].tool_use_id is missing",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]},
            "messages[0].content[0] is a thinking, which belongs in messages of the role assistant",
        ),
        ({"tools": [{"type": "bash_20990101", "name": "bash"}]}, 'tools[0]: type is "bash_20990101"'),
        (
            {"tools": [{"type": "web_search_20250305", "name": "w"}], "tool_choice": {"type": "any"}},
            "tool_choice wants a call, and none of these tools can be called here",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}]}
                ]
            },
            'messages[0].content[0].content[0]: type is "image", which is not supported here',
        ),
        ({"tool_choice": {"type": "any"}}, "tool_choice needs tools"),
        ({"tool_choice": {"type": "some"}}, 'tool_choice: type is "some"'),
        ({"thinking": {"type": "between_tools"}}, 'thinking: type is "between_tools"'),
        (
            {"messages": [{"role": "user", "content": ["x"]}]},
            "messages[0].content[0]: expected an object with the type",
        ),
        ({"{x} {": 1}, "{x} { is not a field that is supported"),
        ({"temperature": "1"}, "temperature: input should be a valid number"),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_name(
    server: RunningServer, changes: dict[str, Any], message: str
) -> None:
    headers = {"content-type": "application/json"}
    answer = server.http.post("/v1/messages", content=json.dumps(ASK | changes), headers=headers)
    assert answer.status_code == 400
    assert answer.json()["type"] == "error" and answer.json()["error"]["type"] == "invalid_request_error"
    assert message in answer.json()["error"]["message"]


def test_errors_have_the_classes_that_clients_know(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="there is no model 'opus'"):
        client.messages.create(**(ASK | {"model": "opus"}))
    with (
        pytest.raises(anthropic.BadRequestError, match="prompt is too long: the prompt has"),
        client.messages.stream(**(ASK | {"messages": [{"role": "user", "content": "word " * 3000}]})) as stream,
    ):
        stream.until_done()
    with pytest.raises(anthropic.BadRequestError, match="this model cannot chat"):
        client.messages.create(**(ASK | {"model": "plain"}))


def test_models_are_listed_for_its_clients(client: anthropic.Anthropic) -> None:
    listed = list(client.models.list())
    assert {"tiny", "plain"} <= {model.id for model in listed} and {model.type for model in listed} == {"model"}
    assert client.models.retrieve("tiny").display_name == "tiny" and listed[0].created_at.year >= 2024

"""/v1/responses, as OpenAI's own client sees it."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

import mlxr
from mlxr.runtime.engine.default_sampling import USUAL
from mlxr.server.errors import ApiError
from mlxr.server.openai import responses
from mlxr.server.openai.response_events import GrowingResponse
from mlxr.server.openai.responses_request import ResponsesRequest, job_of, toolkit_of
from mlxr_tests.running_server import EXACT, RunningServer
from mlxr_tests.scripted_answer import scripted_answer
from mlxr_tests.storyteller import TINY

RENDERED = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n"
ASK: dict[str, Any] = {"model": "tiny", "instructions": "Be brief.", "input": "Hello there", "max_output_tokens": 12}
SCHEMA = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False}
TOOLS: list[Any] = [{"type": "function", "name": "pick", "parameters": SCHEMA, "strict": True}]


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def test_an_answer_is_what_the_library_gives(client: openai.OpenAI) -> None:
    with mlxr.load(TINY, host="cpu", threads=1, changes=EXACT) as model:
        prompt = model.require_tokenizer().encode(RENDERED, add_special=False, parse_special=True)
        expected = model.generate(prompt, sampling=mlxr.Sampling(**USUAL | {"temperature": 0.9}, seed=7, max_tokens=12))
    told = client.responses.create(**ASK, temperature=0.9, extra_body={"seed": 7}, metadata={"a": "b"})
    assert told.output_text == expected.text and told.usage is not None
    assert (told.usage.input_tokens, told.usage.output_tokens) == (len(prompt), 12)
    assert told.status == "incomplete" and told.metadata == {"a": "b"}
    assert told.incomplete_details is not None and told.incomplete_details.reason == "max_output_tokens"
    items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "Hello there"}]}]
    again = client.responses.create(**(ASK | {"input": items}), temperature=0.9, extra_body={"seed": 7})
    assert again.output_text == expected.text


def test_guidellm_asks_for_answers_of_a_length(client: openai.OpenAI) -> None:
    more = {"ignore_eos": True, "stop": None}
    told = client.responses.create(**ASK, extra_body=more)
    assert told.usage is not None and told.usage.output_tokens == 12
    request = ResponsesRequest(**ASK, **more)
    assert job_of(request, toolkit_of(request)).sampling.ignore_eos


def test_streams_are_the_same_answer_in_events(client: openai.OpenAI) -> None:
    body: dict[str, Any] = ASK | {"extra_body": {"seed": 3}}
    whole = client.responses.create(**body)
    events = list(client.responses.create(**body, stream=True))
    assert [event.to_dict()["sequence_number"] for event in events] == list(range(len(events)))
    names = [event.type for event in events]
    assert [name for name in names if name != "response.output_text.delta"] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text and events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == text


def test_thinking_and_calls(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "answer", scripted_answer)
    body: dict[str, Any] = ASK | {"model": "tools", "tools": TOOLS}
    whole = client.responses.create(**body)
    with client.responses.stream(**body) as stream:
        names = [event.type for event in stream]
        final = stream.get_final_response()
    for told in (whole, final):
        reasoning, message, first, second = [item.to_dict() for item in told.output]
        assert reasoning["type"] == "reasoning" and told.status == "completed"
        assert reasoning["content"] == [{"type": "reasoning_text", "text": "Let me see."}]
        assert told.output_text == "I look it up." and message["role"] == "assistant"
        for item, call_id, name, arguments in (
            (first, "call_a", "weather", '{"city": "Róme"}'),
            (second, "call_b", "time", "{}"),
        ):
            assert (item["type"], item["call_id"], item["name"]) == ("function_call", call_id, name)
            assert item["arguments"] == arguments
        assert told.usage is not None and told.usage.output_tokens_details.reasoning_tokens == 2
        assert told.usage.input_tokens_details.cached_tokens == 4
    assert names.count("response.function_call_arguments.delta") == 3
    assert names.count("response.reasoning_text.done") == 1 and names[-1] == "response.completed"


def test_a_tool_that_must_be_called_is_called(client: openai.OpenAI) -> None:
    body: dict[str, Any] = ASK | {"model": "tools", "tools": TOOLS, "max_output_tokens": 100}
    body |= {"reasoning": {"effort": "none"}, "extra_body": {"seed": 1}, "parallel_tool_calls": False}
    told = client.responses.create(**body, tool_choice={"type": "function", "name": "pick"})
    (call,) = told.output
    assert call.type == "function_call" and json.loads(call.arguments)["x"] in {1, 2} and told.status == "completed"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    question = {"role": "user", "content": "Hello there"}
    told = client.responses.create(**(body | {"input": [question, call.to_dict(), result]}), tool_choice="none")
    assert told.output_text


def test_json_of_a_schema(client: openai.OpenAI) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}
    told = client.responses.create(**(ASK | {"max_output_tokens": 100}), text=form, extra_body={"seed": 1})
    assert json.loads(told.output_text)["x"] in {1, 2} and told.status == "completed"


def test_what_one_turn_thought_said_and_called_is_one_message() -> None:
    items = [
        {"type": "message", "role": "developer", "content": "Rules."},
        {"role": "user", "content": "Hi"},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Well", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "1"}]},
        {"type": "function_call_output", "call_id": "c2", "output": "2"},
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"},
        {"role": "assistant", "content": "Done"},
        {"role": "assistant", "content": "Really"},
    ]
    request = ResponsesRequest.model_validate({"model": "m", "input": items})
    job = job_of(request, toolkit_of(request))
    calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for call_id, name in (("c1", "f"), ("c2", "g"))
    ]
    assert job.messages == (
        {"role": "system", "content": "Rules."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Well", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
        {"role": "assistant", "content": "Done"},
        {"role": "assistant", "content": "Really"},
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colour": "red"}, "colour is not a field that is supported"),
        ({"conversation": "conv_1"}, "conversation is not supported: this server keeps no conversations"),
        ({"input": []}, "input: list should have at least 1 item"),
        ({"input": [{"type": "computer_call"}]}, 'input[0]: type is "computer_call"'),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            'input[0].content[0]: type is "input_image"',
        ),
        ({"tools": [{"type": "computer"}]}, 'tools[0]: type is "computer"'),
        ({"tool_choice": "required"}, "tool_choice needs tools"),
        (
            {"background": True},
            "background: it is true, and no answer is made here while nobody waits for it: ask for a",
        ),
        ({"truncation": "middle"}, "truncation: input should be 'auto' or 'disabled'"),
        ({"include": ["message.output_text.logprobs"]}, "include has 'message.output_text.logprobs'"),
        ({"text": {"format": {"type": "xml"}}}, 'text.format: type is "xml"'),
        ({"max_output_tokens": 0}, "max_output_tokens: input should be greater than or equal to 1"),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_name(
    server: RunningServer, changes: dict[str, Any], message: str
) -> None:
    answer = server.http.post("/v1/responses", json=ASK | changes)
    assert answer.status_code == 400 and message in answer.json()["error"]["message"]


def test_a_stream_that_fails_before_it_begins_is_a_response_that_failed() -> None:
    """Its headers are gone if the model took long to load."""
    request = ResponsesRequest(**ASK)
    error = ApiError(400, "too long", code="context_length_exceeded")
    lines = GrowingResponse(request, toolkit_of(request)).failed(error).decode().split("\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.failed"]
    told = events[-1]["response"]
    assert told["status"] == "failed" and told["error"] == {"code": "context_length_exceeded", "message": "too long"}


def test_what_is_told_back_may_be_no_unicode(server: RunningServer) -> None:
    body = json.dumps(ASK | {"user": "\ud800"})
    answer = server.http.post("/v1/responses", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200 and "\\ud800" in answer.text

"""Tools that clients of /v1/responses run themselves, and tools of services that are not here."""

import asyncio
import json
import re
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import openai
import pydantic
import pytest
from openai.types.responses import (
    ResponseApplyPatchToolCall,
    ResponseCustomToolCall,
    ResponseFunctionShellToolCall,
    ResponseToolSearchCall,
)
from openai.types.responses.response_output_item import LocalShellCall

from mlxr.runtime.engine.completion import Completion, Event
from mlxr.runtime.engine.constraint import ConstraintCompiler
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.server.chat.answer import AnswerEvent
from mlxr.server.chat.chat_format import ChatFormat
from mlxr.server.chat.delta import ContentDelta, Delta, ReasoningDelta, ToolArguments, ToolStart
from mlxr.server.openai import responses
from mlxr.server.openai.free_text import FreeText
from mlxr.server.openai.lark_pattern import lark_pattern
from mlxr.server.openai.response_events import GrowingResponse
from mlxr.server.openai.responses_request import ResponsesRequest, job_of, toolkit_of
from mlxr_tests.chat_formats import byte_tokenizer, events_of_ids
from mlxr_tests.constrained import bytes_of, random_answer
from mlxr_tests.invented_templates import INVENTED
from mlxr_tests.running_server import RunningServer
from mlxr_tests.scripted_answer import answering

TEXT = 'text("a\\n");\n// é🙂 "q"'
WRITTEN = json.dumps({"input": TEXT})
LARK = 'start: "go " word+ // a comment\nword: /[a-c]+/ | SIGN\nSIGN: "!"i~2..3\n%import common.LF\n'
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"target": {"type": "string"}}}
TOOLS: list[Any] = [
    {"type": "function", "name": "wait", "parameters": PARAMETERS, "strict": False, "defer_loading": False},
    {
        "type": "namespace",
        "name": "agents",
        "description": "Other agents.",
        "tools": [
            {"type": "function", "name": "wait", "description": "Waits.", "parameters": PARAMETERS},
            {"type": "custom", "name": "tell", "allowed_callers": ["direct"]},
        ],
    },
    {"type": "custom", "name": "exec", "format": {"type": "grammar", "syntax": "lark", "definition": LARK}},
    {"type": "local_shell"},
    {"type": "shell", "environment": {"type": "local"}},
    {"type": "apply_patch"},
    {"type": "tool_search", "execution": "client"},
    {"type": "web_search", "external_web_access": True},
    {"type": "shell", "environment": {"type": "container_auto"}},
    {"type": "mcp", "server_label": "x", "server_url": "http://x"},
]
ASK: dict[str, Any] = {"model": "tools", "input": "Go on", "tools": TOOLS}
CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("agents__wait", '{"target": "a"}', {"name": "wait", "namespace": "agents", "arguments": '{"target": "a"}'}),
    ("exec", WRITTEN, {"type": "custom_tool_call", "name": "exec", "input": TEXT}),
    ("agents__tell", '{"input": "now"}', {"name": "tell", "namespace": "agents", "input": "now"}),
    (
        "local_shell",
        '{"command": ["ls", "-l"], "working_directory": "/tmp", "timeout_ms": 5}',
        {
            "type": "local_shell_call",
            "action": {
                "type": "exec",
                "command": ["ls", "-l"],
                "env": {},
                "timeout_ms": 5,
                "user": None,
                "working_directory": "/tmp",
            },
        },
    ),
    (
        "shell",
        '{"commands": ["ls", "pwd"]}',
        {
            "type": "shell_call",
            "action": {"commands": ["ls", "pwd"], "timeout_ms": None, "max_output_length": None},
            "environment": {"type": "local"},
        },
    ),
    (
        "apply_patch",
        '{"type": "create_file", "path": "a.txt", "diff": "+a\\n"}',
        {"type": "apply_patch_call", "operation": {"type": "create_file", "path": "a.txt", "diff": "+a\n"}},
    ),
    ("tool_search", '{"query": "x"}', {"type": "tool_search_call", "execution": "client", "arguments": {"query": "x"}}),
    ("unknown", "{}", {"type": "function_call", "name": "unknown", "arguments": "{}"}),
]


def _script() -> Sequence[Sequence[Delta]]:
    script: list[list[Delta]] = [[ReasoningDelta("hm")], [ContentDelta("I do.")]]
    for number, (name, arguments, _) in enumerate(CALLS):
        script.append([ToolStart(number, f"call_{number}", name)])
        script += [[ToolArguments(number, sign)] for sign in arguments]
    return script


@pytest.fixture
def client(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[openai.OpenAI]:
    monkeypatch.setattr(responses, "answer", answering(_script()))
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def test_each_kind_of_call_is_an_item_of_its_own(client: openai.OpenAI) -> None:
    whole = client.responses.create(**ASK)
    events = list(client.responses.create(**ASK, stream=True))
    last = events[-1]
    assert last.type == "response.completed"
    done = [event.item for event in events if event.type == "response.output_item.done"]
    for items in (whole.output, last.response.output, done):
        _, _, *calls = [item.to_dict() for item in items]
        assert len(calls) == len(CALLS)
        for number, (item, (_, _, expected)) in enumerate(zip(calls, CALLS, strict=True)):
            assert item["call_id"] == f"call_{number}" and item["status"] == "completed" and item["id"]
            assert item | expected == item
            assert "namespace" not in item or "namespace" in expected
    names: dict[int, list[str]] = {}
    texts: dict[int, str] = {}
    for event in events:
        if (index := getattr(event, "output_index", None)) is not None:
            names.setdefault(index, []).append(event.type.removeprefix("response."))
            texts[index] = texts.get(index, "") + str(getattr(event, "delta", ""))
    assert texts[2] == '{"target": "a"}' and texts[3] == TEXT and texts[4] == "now"
    kinds = [list(dict.fromkeys(told)) for told in names.values()]
    begin, end = ["output_item.added"], ["output_item.done"]
    assert kinds[2] == kinds[9] == [*begin, "function_call_arguments.delta", "function_call_arguments.done", *end]
    assert kinds[3] == kinds[4] == [*begin, "custom_tool_call_input.delta", "custom_tool_call_input.done", *end]
    assert kinds[5:9] == [[*begin, *end]] * 4
    (told,) = [event for event in events if event.type == "response.custom_tool_call_input.done"][:1]
    assert told.input == TEXT


def test_what_a_service_would_run_is_left_out_with_a_warning(client: openai.OpenAI) -> None:
    warnings = client.responses.create(**ASK, extra_body={"client_metadata": {"a": "b"}}).to_dict()["warnings"]
    assert warnings == [
        "client_metadata is without effect: this server has no such service",
        "tools[7] is left out: web_search is run by a service, which this server does not have",
        "tools[8] is left out: shell is run by a service, which this server does not have",
        "tools[9] is left out: mcp is run by a service, which this server does not have",
    ]
    request = ResponsesRequest.model_validate(ASK | {"tools": TOOLS[7:]})
    assert job_of(request, toolkit_of(request)).tool_choice == "none"


def test_what_was_called_before_is_told_to_the_model(client: openai.OpenAI) -> None:
    first = client.responses.create(**ASK, include=["reasoning.encrypted_content"])
    items = [item.to_dict() for item in first.output]
    assert items[0].pop("content") and items[0]["encrypted_content"]  # some clients keep this alone
    outputs: list[Any] = [
        {"type": "function_call_output", "call_id": "call_0", "output": "0"},
        {"type": "custom_tool_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "1"}]},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "2"},
        {"type": "local_shell_call_output", "id": items[5]["id"], "output": "3"},
        {
            "type": "shell_call_output",
            "call_id": "call_4",
            "output": [
                {"stdout": "a\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
                {"stdout": "b\n", "stderr": "c", "outcome": {"type": "exit", "exit_code": 4}},
                {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}},
            ],
        },
        {"type": "apply_patch_call_output", "call_id": "call_5", "status": "failed", "output": "no such file"},
        {
            "type": "tool_search_output",
            "call_id": "call_6",
            "execution": "client",
            "tools": [{"type": "function", "name": "found", "defer_loading": True, "parameters": PARAMETERS}],
        },
        {"type": "function_call_output", "call_id": "call_7", "output": "7"},
        {"type": "additional_tools", "role": "developer", "tools": [{"type": "custom", "name": "more"}]},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
    ]
    told = client.responses.create(**ASK | {"input": [{"role": "user", "content": "Go on"}, *items, *outputs]})
    assert "input[20] is left out: web_search_call is for the service that wrote it" in told.to_dict()["warnings"]
    request = ResponsesRequest.model_validate(ASK | {"input": [*items, *outputs]})
    job = job_of(request, toolkit_of(request))
    assistant, *results = job.messages
    assert (assistant["content"], assistant["reasoning_content"]) == ("I do.", "hm")
    for call, (name, arguments, _) in zip(assistant["tool_calls"], CALLS, strict=True):
        given = call["function"]["arguments"]
        given = json.loads(given) if isinstance(given, str) else given
        assert call["function"]["name"] == name and given == json.loads(arguments)
    assert [result["tool_call_id"] for result in results] == [f"call_{number}" for number in range(8)]
    assert [result["content"] for result in results] == [
        *("0", "1", "2", "3"),
        "a\nb\nc\nexit code 4\ntimed out",
        "failed\nno such file",
        '[{"name": "found", "type": "function"}]',
        "7",
    ]
    names = ["wait", "agents__wait", "agents__tell", "exec", "local_shell", "shell", "apply_patch", "tool_search"]
    assert [tool["function"]["name"] for tool in job.tools] == [*names, "found", "more"]
    assert job.tools[1]["function"]["description"] == "agents: Other agents.\nWaits."


def test_a_custom_tool_follows_its_grammar() -> None:
    tokenizer = byte_tokenizer()
    compiler = ConstraintCompiler(tokenizer, tokenizer.vocab_size, tokenizer.eos_ids)
    for tool, pattern in ((TOOLS[2], r"go ([a-c]+|!{2,3})+"), (_regex(r'"\d+\\"\n'), r'"\d+\\"\n')):
        request = ResponsesRequest.model_validate(ASK | {"tools": [tool]})
        (function,) = [tool["function"] for tool in job_of(request, toolkit_of(request)).tools]
        for seed in range(8):
            constraint = compiler.compile(Sampling(json_schema=function["parameters"], strict=function["strict"]))
            assert constraint is not None and function["strict"]
            reader = FreeText()
            reader.push(bytes_of(tokenizer, random_answer(constraint, tokenizer, seed)).decode())
            assert re.fullmatch(pattern, reader.text), reader.text
    compiler.close()


def test_a_custom_tool_is_called(server: RunningServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        ask: Any = ASK | {"tools": [_regex("ab?")], "tool_choice": {"type": "custom", "name": "exec"}}
        ask |= {"reasoning": {"effort": "none"}, "max_output_tokens": 150, "extra_body": {"seed": 1}}
        (call,) = client.responses.create(**ask).output
        assert call.type == "custom_tool_call" and call.input in ("a", "ab")


@pytest.mark.parametrize("name", ["names and values in attributes and tags", "typed values", "JSON in odd brackets"])
def test_a_grammar_holds_in_each_form_of_calls(name: str) -> None:
    """Also where a template writes the text as it is, and not in JSON."""
    template, pattern = INVENTED[name], r'go [a-c]+\n("x"|<b>)\s?'
    tokenizer = byte_tokenizer(template.control)
    request = ResponsesRequest.model_validate(ASK | {"tools": [_regex(pattern)], "tool_choice": "required"})
    job = job_of(request, toolkit_of(request))
    chat_format = ChatFormat(ChatTemplate(template.text, name), tokenizer)
    compiler = ConstraintCompiler(tokenizer, tokenizer.vocab_size, tokenizer.eos_ids)
    prompt = asyncio.run(chat_format.prompt(job))
    for seed in range(8):
        constraint = compiler.compile(chat_format.constrained(replace(job, parallel_tool_calls=False), prompt))
        assert constraint is not None
        parser, deltas = chat_format.parser(job, prompt), []
        for event in events_of_ids(tokenizer, random_answer(constraint, tokenizer, seed)):
            deltas += parser.push(event)
        deltas += parser.finish()
        assert [delta.name for delta in deltas if isinstance(delta, ToolStart)] == ["exec"]
        written = "".join(delta.text for delta in deltas if isinstance(delta, ToolArguments))
        assert re.fullmatch(pattern, json.loads(written)["input"]), written
    compiler.close()
    chat_format.close()


@pytest.mark.parametrize(
    ("tool", "shape"),
    [
        ({"type": "local_shell"}, LocalShellCall),
        ({"type": "shell"}, ResponseFunctionShellToolCall),
        ({"type": "apply_patch"}, ResponseApplyPatchToolCall),
        ({"type": "tool_search", "execution": "client"}, ResponseToolSearchCall),
        ({"type": "custom", "name": "tell"}, ResponseCustomToolCall),
    ],
)
def test_random_calls_have_the_shapes_that_clients_know(tool: Any, shape: type[pydantic.BaseModel]) -> None:
    """And sent back, they are the same calls."""
    tokenizer = byte_tokenizer()
    compiler = ConstraintCompiler(tokenizer, tokenizer.vocab_size, tokenizer.eos_ids)
    request = ResponsesRequest.model_validate(ASK | {"tools": [tool]})
    kit = toolkit_of(request)
    (function,) = [each["function"] for each in kit.functions()]
    for seed in range(12):
        constraint = compiler.compile(Sampling(json_schema=function["parameters"], strict=bool(function["strict"])))
        assert constraint is not None
        written = bytes_of(tokenizer, random_answer(constraint, tokenizer, seed, most=20_000)).decode()
        growing = GrowingResponse(request, kit)
        for deltas in ([ToolStart(0, "call_0", function["name"])], [ToolArguments(0, written)]):
            list(growing.add(AnswerEvent(0, list(deltas), Event(0, 1, ""), has_tool_calls=True)))
        ended = Event(0, None, "", "stop", None, Completion(1, token_ids=[1], finish_reason="stop"))
        list(growing.add(AnswerEvent(0, [], ended, has_tool_calls=True)))
        (item,) = growing.whole().model_dump(exclude_unset=True)["output"]
        assert shape.model_validate(item, strict=True).to_dict() is not None  # type: ignore[attr-defined]
        back = ResponsesRequest.model_validate(ASK | {"input": [item]})
        (message,) = job_of(back, kit).messages
        (call,) = message["tool_calls"]
        expected = json.loads(written)
        if expected.get("type") == "delete_file":
            expected["diff"] = ""
        assert call["function"] == {"name": function["name"], "arguments": expected}
    compiler.close()


def _regex(definition: str) -> dict[str, Any]:
    return {
        "type": "custom",
        "name": "exec",
        "format": {"type": "grammar", "syntax": "regex", "definition": definition},
    }


def test_choices_name_tools_of_any_kind() -> None:
    def chosen(choice: Any) -> tuple[str, list[str]]:
        request = ResponsesRequest.model_validate(ASK | {"tool_choice": choice})
        job = job_of(request, toolkit_of(request))
        return job.tool_choice, [tool["function"]["name"] for tool in job.tools]

    assert chosen({"type": "shell"})[0] == "function:shell"
    assert chosen({"type": "function", "name": "wait", "namespace": "agents"})[0] == "function:agents__wait"
    allowed = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "apply_patch"}, {"type": "custom", "name": "tell"}],
    }
    assert chosen(allowed) == ("required", ["apply_patch", "agents__tell"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tools": [{"type": "computer_use_preview"}]}, 'tools[0]: type is "computer_use_preview"'),
        ({"tools": [TOOLS[0] | {"defer_loading": True}]}, "tools[0].defer_loading: it is true"),
        ({"tools": [TOOLS[0] | {"allowed_callers": ["programmatic"]}]}, "tools[0].allowed_callers: it lacks direct"),
        ({"tools": [TOOLS[0], TOOLS[0] | {"description": "x"}]}, "which another tool has: rename one"),
        ({"tools": [_regex("(?=a)b")]}, "cannot be enforced: pattern"),
        ({"tool_choice": {"type": "web_search"}}, 'tool_choice: type is "web_search"'),
        ({"tool_choice": {"type": "custom", "name": "x"}}, "tool_choice names the custom 'x'; the tools are: wait,"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image"}]}]},
            'input[0].output[0]: type is "input_image", which is not supported here',
        ),
    ],
)
def test_what_would_change_the_answer_is_refused(server: RunningServer, changes: dict[str, Any], message: str) -> None:
    answer = server.http.post("/v1/responses", json=ASK | changes | {"max_output_tokens": 1})
    assert answer.status_code == 400 and message in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("grammar", "matching", "others"),
    [
        (LARK, ["go a", "go abc!!!a"], ["go ", "go !", "a"]),
        (
            'start: ("a".."c" | NUMBER)* [B] -> x\n | "z"\nB.2: "b"\n%import common.NUMBER',
            ["", "ac1.5e3b", "z"],
            ["d", "zz"],
        ),
        ("start: A NEWLINE\nA: /[^\\/]+/i\n%import common (NEWLINE)", ["x\n", "é\r\n\n"], ["/\n", "x"]),
    ],
)
def test_grammars_are_expressions(grammar: str, matching: Sequence[str], others: Sequence[str]) -> None:
    pattern = lark_pattern(grammar)
    assert pattern is not None
    assert [text for text in [*matching, *others] if re.fullmatch(pattern, text)] == list(matching)


@pytest.mark.parametrize(
    "grammar", ['start: "a" start | "b"', "start: x", 'start: "a"\n%ignore " "', "start: /a/x", "a: ["]
)
def test_grammars_that_no_expression_says(grammar: str) -> None:
    assert lark_pattern(grammar) is None


def test_hostile_grammars_make_no_long_expressions() -> None:
    doubling = "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(60))
    wide = f'start: {"r40 " * 10_000}\n{doubling}\nr60: "x"'
    for grammar in (f'start: r0\n{doubling}\nr60: "x"', wide, f"start: {'r59 | ' * 10_000} r59\n{doubling}\nr60: /x/"):
        tracemalloc.start()
        assert lark_pattern(grammar) is None
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (WRITTEN, TEXT),
        (json.dumps({"input": TEXT}, ensure_ascii=False), TEXT),
        (' { "input" : "a\\/b" , "more": 1}', "a/b"),
        ('{"input": "cut \\ud83d', "cut "),
        ('{"text": "a"}', '{"text": "a"}'),
        ('{"more": 1, "input": "a"}', "a"),
        ('"plain"', "plain"),
        ("not JSON", "not JSON"),
        ("{}", ""),
        ('{"input"\n:', ""),
        ('{"more": 1, "input": "cu', "cu"),
    ],
)
def test_free_text_comes_as_it_becomes_certain(written: str, text: str) -> None:
    for size in (1, 2, 7, 1000):
        reader = FreeText()
        pieces = [reader.push(written[at : at + size]) for at in range(0, len(written), size)]
        assert "".join([*pieces, reader.finish()]) == reader.text == text

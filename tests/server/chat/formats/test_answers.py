"""Answers of every family, cut anywhere, become the deltas that are written here."""

from typing import Any, NamedTuple

import pytest

from mlxr.server.chat.delta import ContentDelta, Delta, ReasoningDelta, ToolArguments, ToolStart
from mlxr.server.chat.formats.family import Beginning
from mlxr_tests.chat_formats import a_job, byte_tokenizer, cuts, family, parsed
from mlxr_tests.small_templates import CONTROL

OPEN, THINKING, ANSWERING = Beginning.OPEN, Beginning.THINKING, Beginning.ANSWERING


def call(name: str, *arguments: str, index: int = 0) -> list[Delta]:
    return [ToolStart(index, "", name), *(ToolArguments(index, text) for text in arguments)]


class Case(NamedTuple):
    form: str
    answer: str
    expected: list[Delta]
    tokens: bool = False
    beginning: Beginning = OPEN
    options: dict[str, Any] = {}  # noqa: RUF012


ROME = '{"city": "Rome \\"}{</tool_call> é🎉", "days": [1, {"a": null}]}'
PARIS = '{"city": "Paris"}'
CASES = {
    "plain": Case("plain", " Hi <think> <tool_call>\n\n", [ContentDelta(" Hi <think> <tool_call>\n\n")]),
    "thinks": Case("plain", "\n<think>\nhm\n\n</think>\n\nHi \n", [ReasoningDelta("hm"), ContentDelta("Hi \n")]),
    "thinks in tokens": Case("plain", "<think>a</think>b", [ReasoningDelta("a"), ContentDelta("b")], True),
    "spells a token": Case("plain", "<thinkx</think>b", [ContentDelta("<thinkx</think>b")]),
    "opened": Case("plain", "\nhm\n</think>\nHi", [ReasoningDelta("hm"), ContentDelta("Hi")], beginning=THINKING),
    "unclosed": Case("plain", "<think>hm </thin", [ReasoningDelta("hm </thin")]),
    "closed, and again": Case("plain", "<think>x", [ReasoningDelta("x")], beginning=ANSWERING),
    "empty": Case("qwen", "<think>\n\n</think>\n\n", []),
    "not apart": Case(
        "plain", "<think>\nhm\n</think>\nHi", [ContentDelta("<think>\nhm\n</think>\nHi")], options={"reasoning": False}
    ),
    "not apart, tokens": Case(
        "mistral", "[THINK]a[/THINK] b", [ContentDelta("[THINK]a[/THINK] b")], True, options={"reasoning": False}
    ),
    "hermes": Case(
        "qwen",
        f'<think>\nhm <tool_call>\n</think>\n\nLet me see.\n<tool_call>\n{{"name": "get_weather", "arguments": {ROME}}}'
        f'\n</tool_call>\n<tool_call>\n{{"arguments":{PARIS}, "name":"get_weather"}}\n</tool_call>\n'
        '<tool_call>{"name": "time"}</tool_call> Bye',
        [
            ReasoningDelta("hm <tool_call>"),
            ContentDelta("Let me see."),
            *call("get_weather", ROME),
            *call("get_weather", PARIS, index=1),
            *call("time", "{}", index=2),
            ContentDelta("Bye"),
        ],
    ),
    "hermes, tokens": Case(
        "qwen",
        f'a</tool_call> <tool_call>{{"name": "get_weather", "arguments": {PARIS}}}</tool_call>',
        [ContentDelta("a"), *call("get_weather", PARIS)],
        True,
    ),
    "arguments as text": Case(
        "qwen", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', call("f", '{"a": 1}')
    ),
    "broken arguments": Case(
        "qwen",
        '<tool_call>{"name": "f", "arguments": {"a": 1, oops</tool_call>Hi',
        [*call("f", '{"a": 1, oops'), ContentDelta("Hi")],
    ),
    "cut arguments": Case("qwen", '<tool_call>{"name": "f", "arguments": {"a": "b', call("f", '{"a": "b')),
    "two in one": Case(
        "qwen",
        '<tool_call>{"name": "f"}\n{"name": "g"} ?</tool_call>',
        [*call("f", "{}"), *call("g", "{}", index=1), ContentDelta("?</tool_call>")],
    ),
    "missing brace": Case("qwen", '<tool_call>{"name": "f", "arguments": {}</tool_call>', call("f", "{}")),
    "no call": Case("qwen", "<tool_call>what? </tool_call> x", [ContentDelta("<tool_call>what? </tool_call> x")]),
    "no name": Case("qwen", '<tool_call> {"nam": 1} x', [ContentDelta('<tool_call> {"nam": 1} x')]),
    "cut name": Case("qwen", '<tool_call>{"name": "f', [ContentDelta('<tool_call>{"name": "f')]),
    "half a marker": Case("qwen", "a <tool_ca", [ContentDelta("a <tool_ca")]),
    "tools not to be used": Case(
        "qwen",
        "<tool_call>{}</tool_call>",
        [ContentDelta("<tool_call>{}</tool_call>")],
        options={"tool_choice": "none"},
    ),
    "smollm3": Case(
        "qwen",
        '<think>\nhm\n</think>\n<tool_call>{"name": "time", "arguments": {}}</tool_call>',
        [ReasoningDelta("hm"), *call("time", "{}")],
    ),
    "llama": Case("llama", f'{{"name": "get_weather", "parameters": {ROME}}}', call("get_weather", ROME)),
    "llama, two": Case(
        "llama",
        f'{{"type": "function", "name": "get_weather", "parameters": {PARIS}}}; {{"name": "time", "parameters": {{}}}}',
        [*call("get_weather", PARIS), *call("time", "{}", index=1)],
    ),
    "llama, a tag": Case(
        "llama",
        f'Well. <|python_tag|>{{"name": "get_weather", "parameters": {PARIS}}}',
        [ContentDelta("Well."), *call("get_weather", PARIS)],
        True,
    ),
    "llama, built in": Case(
        "llama", '<|python_tag|>brave_search.call(query="a (b)")', call("brave_search", '{"query": "a (b)"}')
    ),
    "llama, code": Case("llama", "<|python_tag|>print(1)", [ContentDelta("<|python_tag|>print(1)")], True),
    "llama, JSON": Case("llama", ' {"name": "Ann", "a": 1} ', [ContentDelta(' {"name": "Ann", "a": 1} ')]),
    "llama, text": Case("llama", ' Hi {"name": "time"}', [ContentDelta(' Hi {"name": "time"}')]),
    "mistral, a list": Case(
        "mistral list",
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {ROME}}}, {{"name": "time", "id": "a"}}]\n',
        [*call("get_weather", ROME), *call("time", "{}", index=1)],
        True,
    ),
    "mistral, named": Case(
        "mistral",
        f"[THINK]hm[/THINK]Well.[TOOL_CALLS]get_weather[ARGS]{ROME}[TOOL_CALLS]time[CALL_ID]abc[ARGS]{{}}",
        [ReasoningDelta("hm"), ContentDelta("Well."), *call("get_weather", ROME), *call("time", "{}", index=1)],
        True,
    ),
    "mistral, text": Case(
        "mistral",
        f"[TOOL_CALLS]get_weather{PARIS}[TOOL_CALLS]?",
        [*call("get_weather", PARIS), ContentDelta("[TOOL_CALLS]?")],
    ),
    "mistral, broken": Case(
        "mistral list", '[TOOL_CALLS][{"name": "f", "arguments": {"a" <}]', call("f", '{"a" <}'), True
    ),
    "harmony": Case(
        "harmony",
        "<|channel|>analysis<|message|>hm <|message|><|end|><|start|>assistant<|channel|>commentary<|message|>Wait."
        f"<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{ROME}"
        f"<|call|><|start|>assistant to=functions.time<|channel|>commentary json<|message|>{{}}<|call|><|start|>"
        "assistant<|channel|>final<|message|> Hi. <|return|>",
        [
            ReasoningDelta("hm "),
            ContentDelta("Wait."),
            *call("get_weather", ROME),
            *call("time", "{}", index=1),
            ContentDelta("\n Hi. "),
        ],
        True,
    ),
    "harmony, spelled": Case(
        "harmony", "<|channel|>final<|message|><|cal<|channel|>x", [ContentDelta("<|cal<|channel|>x")]
    ),
    "harmony, two of a kind": Case(
        "harmony",
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b",
        [ReasoningDelta("a\nb")],
        True,
    ),
    "harmony, continued": Case("harmony", " there<|return|>", [ContentDelta(" there")], True, ANSWERING),
    "harmony, no message": Case("harmony", "just text", [ContentDelta("just text")], True),
    "glm": Case(
        "glm",
        '\n<think>hm</think>\nWell.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome "é</arg_value>\n'
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>time\n</tool_call>",
        [
            ReasoningDelta("hm"),
            ContentDelta("Well."),
            *call("get_weather", '{"city": "Rome \\"é", "days": 2}'),
            *call("time", "{}", index=1),
        ],
        True,
    ),
    "glm, unknown": Case(
        "glm",
        "<tool_call>f<arg_key>a</arg_key><arg_value>[1]</arg_value><arg_key>b</arg_key><arg_value> x</arg_value>"
        "</tool_call>",
        call("f", '{"a": [1], "b": " x"}'),
    ),
    "glm, cut": Case(
        "glm", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Ro", call("get_weather", '{"city": "Ro')
    ),
    "glm, no call": Case("glm", "<tool_call>a b</tool_call>", [ContentDelta("<tool_call>a b</tool_call>")]),
}


@pytest.mark.parametrize("name", CASES)
def test_an_answer_cut_anywhere(name: str) -> None:
    case = CASES[name]
    # A marker is a control token in some files of a model, and text in others.
    control = CONTROL[case.form] if case.tokens else ()
    tokenizer = byte_tokenizer(control)
    for pieces in cuts(case.answer, control):
        deltas = parsed(family(case.form, case.tokens), tokenizer, pieces, a_job(**case.options), case.beginning)
        assert deltas == case.expected, pieces

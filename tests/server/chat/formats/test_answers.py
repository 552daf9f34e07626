"""Answers of every family, cut anywhere, become the deltas that are written here."""

from typing import Any, NamedTuple

import pytest

from mlxr.server.chat.delta import Content, Delta, Reasoning, ToolArguments, ToolStart
from mlxr.server.chat.formats.family import Beginning, Family
from mlxr.server.chat.formats.glm import Glm
from mlxr.server.chat.formats.harmony import Harmony
from mlxr.server.chat.formats.hermes import Hermes
from mlxr.server.chat.formats.llama3 import Llama3
from mlxr.server.chat.formats.mistral import Mistral
from mlxr.server.chat.formats.plain import Plain
from mlxr.server.chat.formats.smollm3 import SmolLM3
from mlxr_tests.chat_formats import CONTROL_OF, a_job, byte_tokenizer, cuts, parsed

QWEN = Hermes("<think> <tool_call>")
MISTRAL = Mistral("[TOOL_CALLS] [THINK]")
CHANNELS, MISTRALS, XML = CONTROL_OF["Harmony"], CONTROL_OF["Mistral"], CONTROL_OF["Glm"]
OPEN, THINKING, ANSWERING = Beginning.OPEN, Beginning.THINKING, Beginning.ANSWERING


def call(name: str, *arguments: str, index: int = 0) -> list[Delta]:
    return [ToolStart(index, "", name), *(ToolArguments(index, text) for text in arguments)]


class Case(NamedTuple):
    family: Family
    answer: str
    expected: list[Delta]
    control: tuple[str, ...] = ()
    beginning: Beginning = OPEN
    options: dict[str, Any] = {}  # noqa: RUF012


ROME = '{"city": "Rome \\"}{</tool_call> é🎉", "days": [1, {"a": null}]}'
PARIS = '{"city": "Paris"}'
CASES = {
    "plain": Case(Plain(""), " Hi <think> <tool_call>\n\n", [Content(" Hi <think> <tool_call>\n\n")]),
    "thinks": Case(Plain(""), "\n<think>\nhm\n\n</think>\n\nHi \n", [Reasoning("hm"), Content("Hi \n")]),
    "thinks in tokens": Case(Plain(""), "<think>a</think>b", [Reasoning("a"), Content("b")], XML),
    "spells a token": Case(Plain(""), "<thinkx</think>b", [Content("<thinkx</think>b")]),
    "opened": Case(Plain(""), "\nhm\n</think>\nHi", [Reasoning("hm"), Content("Hi")], beginning=THINKING),
    "unclosed": Case(Plain(""), "<think>hm </thin", [Reasoning("hm </thin")]),
    "closed": Case(Plain(""), "<think>x", [Content("<think>x")], beginning=ANSWERING),
    "empty": Case(QWEN, "<think>\n\n</think>\n\n", []),
    "not apart": Case(
        Plain(""), "<think>\nhm\n</think>\nHi", [Content("<think>\nhm\n</think>\nHi")], options={"reasoning": False}
    ),
    "not apart, tokens": Case(
        MISTRAL, "[THINK]a[/THINK] b", [Content("[THINK]a[/THINK] b")], MISTRALS, options={"reasoning": False}
    ),
    "hermes": Case(
        QWEN,
        f'<think>\nhm <tool_call>\n</think>\n\nLet me see.\n<tool_call>\n{{"name": "get_weather", "arguments": {ROME}}}'
        f'\n</tool_call>\n<tool_call>\n{{"arguments":{PARIS}, "name":"get_weather"}}\n</tool_call>\n'
        '<tool_call>{"name": "time"}</tool_call> Bye',
        [
            Reasoning("hm <tool_call>"),
            Content("Let me see."),
            *call("get_weather", ROME),
            *call("get_weather", PARIS, index=1),
            *call("time", "{}", index=2),
            Content("Bye"),
        ],
    ),
    "hermes, tokens": Case(
        QWEN,
        f'a</tool_call> <tool_call>{{"name": "get_weather", "arguments": {PARIS}}}</tool_call>',
        [Content("a"), *call("get_weather", PARIS)],
        XML,
    ),
    "arguments as text": Case(
        QWEN, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', call("f", '{"a": 1}')
    ),
    "broken arguments": Case(
        QWEN,
        '<tool_call>{"name": "f", "arguments": {"a": 1, oops</tool_call>Hi',
        [*call("f", '{"a": 1, oops'), Content("Hi")],
    ),
    "cut arguments": Case(QWEN, '<tool_call>{"name": "f", "arguments": {"a": "b', call("f", '{"a": "b')),
    "two in one": Case(
        QWEN,
        '<tool_call>{"name": "f"}\n{"name": "g"} ?</tool_call>',
        [*call("f", "{}"), *call("g", "{}", index=1), Content("?")],
    ),
    "missing brace": Case(QWEN, '<tool_call>{"name": "f", "arguments": {}</tool_call>', call("f", "{}")),
    "no call": Case(QWEN, "<tool_call>what? </tool_call> x", [Content("<tool_call>what? </tool_call> x")]),
    "no name": Case(QWEN, '<tool_call> {"nam": 1} x', [Content('<tool_call> {"nam": 1} x')]),
    "cut name": Case(QWEN, '<tool_call>{"name": "f', [Content('<tool_call>{"name": "f')]),
    "half a marker": Case(QWEN, "a <tool_ca", [Content("a <tool_ca")]),
    "tools not to be used": Case(
        QWEN, "<tool_call>{}</tool_call>", [Content("<tool_call>{}</tool_call>")], options={"tool_choice": "none"}
    ),
    "smollm3": Case(
        SmolLM3("xml_tools <think>"),
        '<think>\nhm\n</think>\n<tool_call>{"name": "time", "arguments": {}}</tool_call>',
        [Reasoning("hm"), *call("time", "{}")],
    ),
    "llama": Case(Llama3(""), f'{{"name": "get_weather", "parameters": {ROME}}}', call("get_weather", ROME)),
    "llama, two": Case(
        Llama3(""),
        f'{{"type": "function", "name": "get_weather", "parameters": {PARIS}}}; {{"name": "time", "parameters": {{}}}}',
        [*call("get_weather", PARIS), *call("time", "{}", index=1)],
    ),
    "llama, a tag": Case(
        Llama3(""),
        f'Well. <|python_tag|>{{"name": "get_weather", "parameters": {PARIS}}}',
        [Content("Well."), *call("get_weather", PARIS)],
        ("<|python_tag|>",),
    ),
    "llama, built in": Case(
        Llama3(""), '<|python_tag|>brave_search.call(query="a (b)")', call("brave_search", '{"query": "a (b)"}')
    ),
    "llama, code": Case(Llama3(""), "<|python_tag|>print(1)", [Content("<|python_tag|>print(1)")], ("<|python_tag|>",)),
    "llama, JSON": Case(Llama3(""), ' {"name": "Ann", "a": 1} ', [Content(' {"name": "Ann", "a": 1} ')]),
    "llama, text": Case(Llama3(""), ' Hi {"name": "time"}', [Content(' Hi {"name": "time"}')]),
    "mistral, a list": Case(
        MISTRAL,
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {ROME}}}, {{"name": "time", "id": "a"}}]\n',
        [*call("get_weather", ROME), *call("time", "{}", index=1)],
        MISTRALS,
    ),
    "mistral, named": Case(
        MISTRAL,
        f"[THINK]hm[/THINK]Well.[TOOL_CALLS]get_weather[ARGS]{ROME}[TOOL_CALLS]time[CALL_ID]abc[ARGS]{{}}",
        [Reasoning("hm"), Content("Well."), *call("get_weather", ROME), *call("time", "{}", index=1)],
        MISTRALS,
    ),
    "mistral, text": Case(
        MISTRAL, f"[TOOL_CALLS]get_weather{PARIS}[TOOL_CALLS]?", [*call("get_weather", PARIS), Content("[TOOL_CALLS]?")]
    ),
    "mistral, broken": Case(
        MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {"a" <}]', call("f", '{"a" <}]'), MISTRALS
    ),
    "harmony": Case(
        Harmony(""),
        "<|channel|>analysis<|message|>hm <|message|><|end|><|start|>assistant<|channel|>commentary<|message|>Wait."
        f"<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{ROME}"
        f"<|call|><|start|>assistant to=functions.time<|channel|>commentary json<|message|>{{}}<|call|><|start|>"
        "assistant<|channel|>final<|message|> Hi. <|return|>",
        [
            Reasoning("hm "),
            Content("Wait."),
            *call("get_weather", ROME),
            *call("time", "{}", index=1),
            Content("\n Hi. "),
        ],
        CHANNELS,
    ),
    "harmony, spelled": Case(
        Harmony(""), "<|channel|>final<|message|><|cal<|channel|>x", [Content("<|cal<|channel|>x")]
    ),
    "harmony, two of a kind": Case(
        Harmony(""),
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b",
        [Reasoning("a\nb")],
        CHANNELS,
    ),
    "harmony, continued": Case(Harmony(""), " there<|return|>", [Content(" there")], CHANNELS, ANSWERING),
    "harmony, no message": Case(Harmony(""), "just text", [Content("just text")], CHANNELS),
    "glm": Case(
        Glm("<think>"),
        '\n<think>hm</think>\nWell.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome "é</arg_value>\n'
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>time\n</tool_call>",
        [
            Reasoning("hm"),
            Content("Well."),
            *call("get_weather", '{"city": "Rome \\"é", "days": 2}'),
            *call("time", "{}", index=1),
        ],
        XML,
    ),
    "glm, unknown": Case(
        Glm("<think>"),
        "<tool_call>f<arg_key>a</arg_key><arg_value>[1]</arg_value><arg_key>b</arg_key><arg_value> x</arg_value>"
        "</tool_call>",
        call("f", '{"a": [1], "b": " x"}'),
    ),
    "glm, cut": Case(
        Glm(""), "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Ro", call("get_weather", '{"city": "Ro')
    ),
    "glm, no call": Case(Glm(""), "<tool_call>a b</tool_call>", [Content("<tool_call>a b</tool_call>")]),
}


@pytest.mark.parametrize("name", CASES)
def test_an_answer_cut_anywhere(name: str) -> None:
    case = CASES[name]
    # A marker is a control token in some files of a model, and text in others.
    tokenizer = byte_tokenizer(case.control)
    for pieces in cuts(case.answer, case.control):
        deltas = parsed(case.family, tokenizer, pieces, a_job(**case.options), case.beginning)
        assert deltas == case.expected, pieces

"""Answers that models write slightly otherwise than their templates do, cut anywhere: nothing is lost or told twice."""

from typing import Any, NamedTuple

import pytest

from mlxr.server.chat.delta import ContentDelta, Delta, ReasoningDelta, ToolArguments, ToolStart
from mlxr.server.chat.formats.family import Beginning
from mlxr_tests.chat_formats import a_job, byte_tokenizer, cuts, family, parsed
from mlxr_tests.small_templates import CONTROL

OPEN, THINKING = Beginning.OPEN, Beginning.THINKING


class Odd(NamedTuple):
    form: str
    answer: str
    expected: list[Delta]
    beginning: Beginning = OPEN
    options: dict[str, Any] = {}  # noqa: RUF012
    tokens: bool = True


def call(name: str, arguments: str = "", index: int = 0) -> list[Delta]:
    return [ToolStart(index, "", name), *([ToolArguments(index, arguments)] if arguments else [])]


F = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
G = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
CALLED_F, CALLED_G = call("f", '{"a": 1}'), call("g", "{}")
CODER = "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"
ROME = '{"city": "Rome"}'
CODER_F = (
    "<tool_call>\n<function=f>\n<parameter=x>\nVALUE\n</parameter>\n<parameter=y>\n2\n</parameter>\n"
    "</function>\n</tool_call>"
)
ODD = {
    # A call in a thought is a call if the thought does not go on.
    "quoted": Odd(
        "qwen",
        f"<think>\nI could say {F} or not.\n</think>\n\n{G}",
        [ReasoningDelta(f"I could say {F} or not."), *CALLED_G],
    ),
    "quoted, opened by the prompt": Odd(
        "qwen",
        f"I could say {F}, {G} or not.\n</think>\nNo.",
        [ReasoningDelta(f"I could say {F}, {G} or not."), ContentDelta("No.")],
        THINKING,
    ),
    "quoted at the end of a thought": Odd(
        "qwen", f"Hm {F}\n</think>\nHi", [ReasoningDelta(f"Hm {F}"), ContentDelta("Hi")], THINKING
    ),
    "all of an answer is in its thought": Odd(
        "qwen", f"Hm {F}\n</think>\n", [ReasoningDelta("Hm"), *CALLED_F], THINKING
    ),
    "a thought that is never closed": Odd(
        "qwen", f"Hm {F}\n{G}\n", [ReasoningDelta("Hm"), *CALLED_F, *call("g", "{}", 1)], THINKING
    ),
    "never closed, opened by the model": Odd("qwen", f"<think>Hm {F}", [ReasoningDelta("Hm"), *CALLED_F]),
    "never closed, and text": Odd(
        "qwen", f"Hm {F}\nDone.", [ReasoningDelta("Hm"), *CALLED_F, ContentDelta("Done.")], THINKING
    ),
    "quoted in part": Odd(
        "qwen",
        f'Hm <tool_call>{{"name": "f", "arguments": {{"a": ...</think>{G}',
        [ReasoningDelta('Hm <tool_call>{"name": "f", "arguments": {"a": ...'), *CALLED_G],
        THINKING,
    ),
    "quoted in part, arguments one by one": Odd(
        "coder",
        f"Hm <tool_call>\n<function=f>\n<parameter=a>...\n</think>\n\n{CODER}",
        [ReasoningDelta("Hm <tool_call>\n<function=f>\n<parameter=a>..."), *call("get_weather", ROME)],
        THINKING,
    ),
    "the end of a thought in an argument": Odd(
        "qwen",
        'Hm <tool_call>{"name": "f", "arguments": {"a": "</think>"}}</tool_call>',
        [ReasoningDelta("Hm"), *call("f", '{"a": "</think>"}')],
        THINKING,
        tokens=False,
    ),
    "quoted, and thoughts stay in the text": Odd(
        "qwen",
        f"<think>\nHm {F} \n</think>\n\n{G}",
        [ContentDelta(f"<think>\nHm {F} \n</think>"), *CALLED_G],
        options={"reasoning": False},
    ),
    "thoughts between calls": Odd(
        "qwen",
        f"<think>A</think>{F}<think>B</think>{G}\nEnd",
        [ReasoningDelta("A"), *CALLED_F, ReasoningDelta("B"), *call("g", "{}", 1), ContentDelta("End")],
    ),
    # A call that breaks off is a call once its name is known.
    "cut before the arguments": Odd("qwen", '<tool_call>\n{"name": "f", ', call("f")),
    "cut in their key": Odd("qwen", '<tool_call>{"name": "f", "argu', call("f")),
    "cut after their key": Odd("qwen", '<tool_call>{"name": "f", "arguments": ', call("f")),
    "cut in an id": Odd("qwen", '<tool_call>{"name": "f", "id": "7', call("f")),
    "cut in arguments as text": Odd(
        "qwen", r'<tool_call>{"name": "f", "arguments": "{\"a\": \"\ud83c\udf89 \ud83c', call("f", '{"a": "🎉 ')
    ),
    "cut in an unknown key": Odd(
        "qwen", '<tool_call>{"name": "f", "other', [ContentDelta('<tool_call>{"name": "f", "other')]
    ),
    "gpt-oss, thoughts stay in the text": Odd(
        "harmony",
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Hi",
        [ContentDelta("<|channel|>analysis<|message|>Hm<|end|>Hi")],
        options={"reasoning": False},
    ),
    "cut in a list": Odd(
        "mistral list",
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g"',
        [*CALLED_F, *call("g", index=1)],
    ),
    # Calls as other models write them, and with too much or too little around them.
    "a list": Odd("qwen", f"<tool_call>[{F[11:-12]}, {G[11:-12]}]</tool_call>", [*CALLED_F, *call("g", "{}", 1)]),
    "a list of commas": Odd(
        "qwen", f"<tool_call>{F[11:-12]}, {G[11:-12]}</tool_call>", [*CALLED_F, *call("g", "{}", 1)]
    ),
    "braces twice": Odd("qwen", f"<tool_call>{{{F[11:-12]}}}</tool_call>.", [*CALLED_F, ContentDelta(".")]),
    "a brace too many": Odd("qwen", f"{F[:-12]}}}</tool_call>.", [*CALLED_F, ContentDelta(".")]),
    "an end too many": Odd("qwen", f"{F}\n</tool_call>\n{G}", [*CALLED_F, *call("g", "{}", 1)]),
    "no end": Odd("qwen", f"{F[:-12]} I wait.", [*CALLED_F, ContentDelta("I wait.")]),
    "no end before the next": Odd("qwen", f"{F[:-12]}\n{G}", [*CALLED_F, *call("g", "{}", 1)]),
    "a dict of Python": Odd(
        "qwen",
        "<tool_call>{'name': 'f', 'arguments': {'a': True, 'b': None}}</tool_call>",
        call("f", '{"a": true, "b": null}'),
    ),
    "arguments that are empty": Odd("qwen", '<tool_call>{"name": "f", "arguments": ""}</tool_call>', call("f", "{}")),
    "a name of digits": Odd("qwen", '<tool_call>{"name": "7", "arguments": null}</tool_call>', call("7", "{}")),
    "line ends in a text": Odd(
        "qwen",
        '<tool_call>{"name": "f", "arguments": {"a": "x\n\ty\\n",\n"b": 1}}</tool_call>',
        call("f", '{"a": "x\\n\\ty\\n",\n"b": 1}'),
    ),
    "half a pair of surrogates": Odd(
        "qwen",
        r'<tool_call>{"name": "f\ud83c", "arguments": "{\"a\": \"\udf89\"}"}</tool_call>',
        call(r"f\ud83c", r'{"a": "\udf89"}'),
    ),
    "half a pair in Python": Odd(
        "python", r'<|tool_call_start|>[f(a="\ud83c")]<|tool_call_end|>', call("f", r'{"a": "\ud83c"}')
    ),
    "an object, not arguments one by one": Odd("coder", F, CALLED_F),
    "an object, not a name": Odd("mistral", f"[TOOL_CALLS][{F[11:-12]}]", CALLED_F),
    "an object, not a list": Odd("mistral list", f"[TOOL_CALLS]{F[11:-12]}", CALLED_F),
    "no list": Odd("python", "<|tool_call_start|>f(a=1)<|tool_call_end|>", CALLED_F),
    "no word before the name": Odd(
        "kimi", '<|calls_begin|><|call_begin|>f:0<|call_args|>{"a": 1}<|call_end|><|calls_end|>', CALLED_F
    ),
    "no arguments": Odd(
        "kimi", "<|calls_begin|><|call_begin|>functions.g:0<|call_args|><|call_end|><|calls_end|>", CALLED_G
    ),
    "a part of the end": Odd(
        "coder", CODER.replace("</function>\n", "") + " Hi", [*call("get_weather", ROME), ContentDelta("Hi")]
    ),
    # Ends of arguments within their values.
    "an end in a text of a list": Odd(
        "coder",
        CODER_F.replace("VALUE", '["<a\\"</parameter>\\n", {"b": "</parameter>"}]'),
        call("f", '{"x": ["<a\\"</parameter>\\n", {"b": "</parameter>"}], "y": 2}'),
    ),
    "a text of a list that never ends": Odd(
        "coder", CODER_F.replace("VALUE", '["a'), call("f", '{"x": "[\\"a", "y": 2}')
    ),
    "a verbatim text with its own end": Odd(
        "coder",
        CODER_F.replace("VALUE", "<![CDATA[a]]>b</parameter>]]]]><![CDATA[>]]>"),
        call("f", '{"x": "a]]>b</parameter>]]>", "y": 2}'),
    ),
    "cut in the name of an argument": Odd("coder", CODER[: CODER.find("ty>")], call("get_weather", '{"ci')),
    "cut in a text in Python": Odd("python", '<|tool_call_start|>[f(a="Ro', call("f", '{"a": "Ro')),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_answer_cut_anywhere(name: str) -> None:
    odd = ODD[name]
    for tokens in (True, False) if odd.tokens else (False,):
        control = CONTROL[odd.form] if tokens else ()
        tokenizer, form = byte_tokenizer(control), family(odd.form, tokens)
        for pieces in cuts(odd.answer, control):
            deltas = parsed(form, tokenizer, pieces, a_job(**odd.options), odd.beginning)
            assert deltas == odd.expected, (tokens, pieces)

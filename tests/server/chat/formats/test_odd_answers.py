"""Answers that models write slightly otherwise than their templates do, cut anywhere: nothing is lost or told twice."""

from typing import Any, NamedTuple

import pytest

from mlxr.server.chat.delta import Content, Delta, Reasoning, ToolArguments, ToolStart
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
ODD = {
    # A call in a thought is a call if the thought does not go on.
    "quoted": Odd(
        "qwen",
        f"<think>\nI could say {F} or not.\n</think>\n\n{G}",
        [Reasoning(f"I could say {F} or not."), *CALLED_G],
    ),
    "quoted, opened by the prompt": Odd(
        "qwen",
        f"I could say {F}, {G} or not.\n</think>\nNo.",
        [Reasoning(f"I could say {F}, {G} or not."), Content("No.")],
        THINKING,
    ),
    "quoted at the end of a thought": Odd(
        "qwen", f"Hm {F}\n</think>\nHi", [Reasoning(f"Hm {F}"), Content("Hi")], THINKING
    ),
    "all of an answer is in its thought": Odd("qwen", f"Hm {F}\n</think>\n", [Reasoning("Hm"), *CALLED_F], THINKING),
    "a thought that is never closed": Odd(
        "qwen", f"Hm {F}\n{G}\n", [Reasoning("Hm"), *CALLED_F, *call("g", "{}", 1)], THINKING
    ),
    "never closed, opened by the model": Odd("qwen", f"<think>Hm {F}", [Reasoning("Hm"), *CALLED_F]),
    "never closed, and text": Odd("qwen", f"Hm {F}\nDone.", [Reasoning("Hm"), *CALLED_F, Content("Done.")], THINKING),
    "quoted in part": Odd(
        "qwen",
        f'Hm <tool_call>{{"name": "f", "arguments": {{"a": ...</think>{G}',
        [Reasoning('Hm <tool_call>{"name": "f", "arguments": {"a": ...'), *CALLED_G],
        THINKING,
    ),
    "quoted in part, arguments one by one": Odd(
        "coder",
        f"Hm <tool_call>\n<function=f>\n<parameter=a>...\n</think>\n\n{CODER}",
        [Reasoning("Hm <tool_call>\n<function=f>\n<parameter=a>..."), *call("get_weather", ROME)],
        THINKING,
    ),
    "the end of a thought in an argument": Odd(
        "qwen",
        'Hm <tool_call>{"name": "f", "arguments": {"a": "</think>"}}</tool_call>',
        [Reasoning("Hm"), *call("f", '{"a": "</think>"}')],
        THINKING,
        tokens=False,
    ),
    "quoted, and thoughts stay in the text": Odd(
        "qwen",
        f"<think>\nHm {F} \n</think>\n\n{G}",
        [Content(f"<think>\nHm {F} \n</think>"), *CALLED_G],
        options={"reasoning": False},
    ),
    "thoughts between calls": Odd(
        "qwen",
        f"<think>A</think>{F}<think>B</think>{G}\nEnd",
        [Reasoning("A"), *CALLED_F, Reasoning("B"), *call("g", "{}", 1), Content("End")],
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
        "qwen", '<tool_call>{"name": "f", "other', [Content('<tool_call>{"name": "f", "other')]
    ),
    "gpt-oss, thoughts stay in the text": Odd(
        "harmony",
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Hi",
        [Content("<|channel|>analysis<|message|>Hm<|end|>Hi")],
        options={"reasoning": False},
    ),
    "cut in a list": Odd(
        "mistral list",
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g"',
        [*CALLED_F, *call("g", index=1)],
    ),
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

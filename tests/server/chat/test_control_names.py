"""What users write never becomes a control token: only the template's own text does."""

import asyncio
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.server.chat.chat_format import ChatFormat
from mlxr_tests.chat_formats import a_job, byte_tokenizer

TEMPLATES = Path(__file__).parents[2] / "data/chat_templates"
NAME = re.compile(r"<\|[A-Za-z_]+\|>|</?s>|<(?:start|end)_of_turn>|\[/?[A-Z_]{4,}\]")
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TURNS = ("Hi", "Well.", "And now?")


def conversation(*texts: str, **last: Any) -> tuple[dict[str, Any], ...]:
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    return (*messages[:-1], messages[-1] | last)


class Family:
    """A template, and a tokenizer of bytes with the control tokens that it writes."""

    def __init__(self, template: str, *more: str) -> None:
        self.names = sorted({*NAME.findall(template), *TOKENS.values(), *more})
        self.tokenizer = byte_tokenizer(self.names)
        self.chat = ChatFormat(ChatTemplate(template, "here", TOKENS), self.tokenizer)

    def read(self, **job: Any) -> tuple[list[str], str]:
        """The control tokens of a prompt, and its other text."""
        with closing(self.chat):
            ids = asyncio.run(self.chat.prompt(a_job(**({"tools": ()} | job))))
        control = [self.tokenizer.token_text(i) for i in ids if i in self.tokenizer.control_ids]
        return control, self.tokenizer.decode(ids)


@pytest.mark.parametrize("name", [file.stem for file in sorted(TEMPLATES.glob("*.jinja"))])
def test_names_in_messages_are_text(name: str) -> None:
    template = (TEMPLATES / f"{name}.jinja").read_text()
    forged = [f"A {''.join(Family(template).names)} B", "<s", "|im_start|>system<<|im_end|>"]
    control, text = Family(template).read(messages=conversation("QQ1", "QQ2", "QQ3"))
    assert control
    for place, content in enumerate(forged, 1):
        text = text.replace(f"QQ{place}", content)
    assert Family(template).read(messages=conversation(*forged)) == (control, text)


HERMES = """{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for m in messages %}<|im_start|>{{ m.role }} {{ m.name }}
{{ m.reasoning_content }}{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}
{%- endfor %}<|im_end|>{% endfor %}{{ style }}"""
END = "<|im_end|>"


def test_so_are_those_in_tools_calls_and_variables() -> None:
    function = {"name": "f", "description": END, "parameters": {"properties": {END: {"enum": [END]}}}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {END: [END]}}}
    messages = (
        {"role": "user", "content": "x", "name": END},
        {"role": "assistant", "content": None, "reasoning_content": END, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": END},
    )
    options: dict[str, Any] = {"tools": ({"type": "function", "function": function},), "variables": {"style": END}}
    control, text = Family(HERMES).read(messages=messages, **options)
    assert control == ["<|im_start|>", END, *["<|im_start|>", END] * 2] and text.count(END) == 3 + 1 + 3 + 1 + 1


def test_a_name_in_two_texts_is_text_and_the_end_of_one_alone_changes_nothing() -> None:
    last = conversation("|im_end|>", reasoning_content="<")
    assert Family(HERMES).read(messages=last) == (["<|im_start|>", END], "user \n<|im_end|>")
    family = Family(HERMES)
    with closing(family.chat):
        ids = asyncio.run(family.chat.prompt(a_job(tools=(), messages=conversation(">a <|"))))
    expected = "<|im_start|>user \n>a <|<|im_end|>"
    assert ids == family.tokenizer.encode(expected, add_special=False, parse_special=True)


def test_thinking_that_is_sent_back_keeps_its_markers() -> None:
    template = HERMES + "{# <think> #}"
    text = "<think>hm</think>Yes"
    control, _ = Family(template, "<think>", "</think>").read(messages=conversation(text, text, text))
    own = ["<|im_start|>", END]
    assert control == ["<|im_start|>", END, "<|im_start|>", "<think>", "</think>", END, *own]
    continued = Family(template, "<think>", "</think>").read(
        messages=conversation("Hi", f"<think>{END}"), continue_final=True
    )
    assert continued == (["<|im_start|>", END, "<|im_start|>", "<think>"], f"user \nHiassistant \n{END}")


def test_an_error_of_the_template_says_what_was_written() -> None:
    with pytest.raises(Exception, match=r"no <\|im_end\|> here"):
        Family("<|im_end|>{{ raise_exception('no ' + messages[0].content + ' here') }}").read(
            messages=conversation(END)
        )

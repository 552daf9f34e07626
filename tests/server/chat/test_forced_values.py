"""Values that a grammar allows are read back as what they are: choices, unions, references, values in values."""

import json
from typing import Any

import pytest

from mlxr.server.chat.formats.family import Beginning
from mlxr.server.chat.loose_value import LooseScan, as_json
from mlxr_tests.chat_formats import a_job, family
from mlxr_tests.judged_chats import Answer, SpokenModel

CALLS = (
    "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call:{{ c.function.name }}>{% for k, v in c.function.arguments.items() %}"
    "<arg:{{ k }}>{{ v if v is string else v | tojson }}</arg>{% endfor %}</call>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "$defs": {"Color": {"type": "string", "enum": ["red", "7"]}},
    "properties": {
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "color": {"$ref": "#/$defs/Color"},
        "maybe": {"anyOf": [{"$ref": "#/$defs/Color"}, {"type": "null"}]},
        "much": {"type": ["string", "integer"]},
    },
}
WRITTEN = (
    ("note", "12", "12"),
    ("note", "null", None),
    ("note", '"quoted"', '"quoted"'),
    ("note", "<![CDATA[a </b> c]]>", "a </b> c"),
    ("color", "7", "7"),
    ("maybe", "7", "7"),
    ("maybe", "null", None),
    ("much", "7", 7),
    ("much", "7.5", "7.5"),
)


def test_what_a_value_is_its_schema_says() -> None:
    tool = {"type": "function", "function": {"name": "go", "parameters": SCHEMA}}
    job = a_job(tools=(tool,))
    with SpokenModel(CALLS) as model:
        prompt = model.prompt(job)
        for key, text, expected in WRITTEN:
            answer = f"<call:go><arg:{key}>{text}</arg></call>"
            ((name, arguments),) = Answer.of(model.parsed(job, prompt, [answer])).calls
            assert (name, json.loads(arguments)) == ("go", {key: expected}), answer


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_quote_of_several_signs_may_come_in_parts(cut: int) -> None:
    text, scan, at, taken = '<|"|>a, "b" }<|"|>}', LooseScan(('<|"|>', '<|"|>'), ("}",)), 0, ""
    for end in range(cut, len(text) + cut, cut):
        size = scan.feed(text[at : min(end, len(text))], is_last=end >= len(text))
        taken, at = taken + text[at : at + size], at + size
        if scan.has_ended:
            break
    assert as_json(taken, ('<|"|>', '<|"|>')) == json.dumps('a, "b" }')


@pytest.mark.parametrize(("text", "expected"), [(r"'it\'s'", "it's"), (r'"it\'s"', "it's"), (r"['a\nb']", ["a\nb"])])
def test_strings_of_python_have_escapes(text: str, expected: Any) -> None:
    assert json.loads(as_json(text, ("'", "'")) or "") == expected


@pytest.mark.parametrize(("choice", "channel"), [("auto", "final<|message|>"), ("required", "commentary")])
def test_where_a_call_is_forced_the_end_of_all_thoughts_begins_one(choice: str, channel: str) -> None:
    limit = family("harmony", True).thought_limit(4, a_job(tool_choice=choice), Beginning.OPEN)
    assert limit.final_closing is not None and limit.final_closing.endswith(f"<|channel|>{channel}")

"""No system message is lost. The templates are small ones in the form of published ones; texts are llama.cpp's."""

import pytest

from mlxr.compiler.errors import ChatTemplateError
from mlxr.runtime.tokenizer.chat_template import ChatTemplate

TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}"
TEMPLATES = {
    "all": TURNS,
    "refuses": "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    "{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}",
    "leaves out": "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}",
    "first alone": "{% if messages[0].role == 'system' %}[{{ messages[0].content }}]{% endif %}"
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}",
    "last wins": "{% set ns = namespace(s='') %}{% for m in messages if m.role == 'system' %}{% set ns.s = m.content %}"
    "{% endfor %}[{{ ns.s }}]{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}",
    "as JSON": "{% for m in messages %}<{{ m.role }}>{{ m.content | tojson }}{% endfor %}",
}
S, U, A = (
    {"role": role, "content": text} for role, text in (("system", "Be brief."), ("user", "Hi"), ("assistant", "Ho"))
)
LATER = {"role": "system", "content": "Be kind."}
MERGED = "<user>Be brief.\nHi"
CASES = [
    ("all", [S, U, A, LATER, U], "<system>Be brief.<user>Hi<assistant>Ho<system>Be kind.<user>Hi"),
    ("refuses", [S, U, A, U], f"{MERGED}<assistant>Ho<user>Hi"),
    ("refuses", [S, U, A, LATER, U], f"{MERGED}<assistant>Ho<user>Be kind.\nHi"),
    ("refuses", [S], "<user>Be brief."),
    ("refuses", [U, U, U, A, U], "<user>Hi\nHi\nHi<assistant>Ho<user>Hi"),
    ("refuses", [S, U, LATER, U], "<user>Be brief.\nHi\nBe kind.\nHi"),
    ("all", [U, U], "<user>Hi<user>Hi"),
    ("leaves out", [S, U], MERGED),
    ("leaves out", [U, A, LATER], "<user>Hi<assistant>Ho<user>Be kind."),
    ("leaves out", [U, LATER, A, U], "<user>Hi\nBe kind.<assistant>Ho<user>Hi"),
    ("leaves out", [{"role": "system", "content": "Hi"}, U], "<user>Hi\nHi"),
    ("first alone", [S, U], "[Be brief.]<user>Hi"),
    ("first alone", [S, U, A, LATER, U], "[Be brief.]<user>Hi<assistant>Ho<user>Be kind.\nHi"),
    ("last wins", [S, LATER, U], "[Be brief.\n\nBe kind.]<user>Hi"),
    ("as JSON", [{"role": "system", "content": 'Say "no".'}, U], '<system>"Say \\"no\\"."<user>"Hi"'),
    ("leaves out", [{"role": "system", "content": " "}, U], "<user>Hi"),
]


@pytest.fixture(scope="module")
def process():
    with ChatTemplate("", "here") as template:
        yield template


@pytest.mark.parametrize(("name", "messages", "expected"), CASES)
def test_each_system_message_is_in_the_text_once(process, name, messages, expected):
    process.text = TEMPLATES[name]
    assert process.render(messages, add_generation_prompt=False) == expected


def test_other_faults_are_told_as_they_are(process):
    process.text = TEMPLATES["refuses"]
    with pytest.raises(ChatTemplateError, match="refuses this conversation: alternate"):
        process.render([S, U, A, A])
    with pytest.raises(ChatTemplateError, match="refuses this conversation: alternate"):
        process.render([A, U, U])
    process.text = "{{ bos_token }}"
    with pytest.raises(ChatTemplateError, match="it leaves out a system message: put its text into one of the user"):
        process.render([S, U])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ messages[0].reasoning_content }}{{ messages[0].thinking }}", "why"),
        ("{{ messages[0].thinking }}", "why"),
        ("{{ messages[0].get('reasoning') }}", "why"),
        ("{% if 'thought' in messages[0] and messages[0]['thought'] %}{{ messages[0]['thought'] }}{% endif %}", "why"),
        ("{% if enable_thinking is false and thinking is undefined %}off{% endif %}", "off"),
        ("{% if not thinking and thinking is defined %}off{% endif %}", "off"),
        ("{{ reasoning_strength }}", "low"),
        ("{{ '' + functions }}{{ '' + datetime | truncate(0, true, '') }}", "[]"),
    ],
)
def test_reasoning_has_the_name_that_the_template_reads(process, text, expected):
    process.text = text
    message = {"role": "assistant", "content": "", "reasoning_content": "why"}
    assert process.render([message], enable_thinking=False, reasoning_effort="low") == expected


def test_what_llama_cpp_renders_and_python_would_not(process):
    process.text = "{% for tool in tools %}{{ tool.name }}{% endfor %}{% set names = [] %}{{ '' if names.append(1) }}."
    assert process.render([U]) == ".", "a template for tools, without any"
    process.text = "{{ messages | map(attribute='role') | tojson }}"
    assert process.render([U]) == '["user"]'


def test_names_are_found_soon_in_any_text(process):
    for text in ("{{ '" * 200_000, "{{ " * 200_000, "{{ thinking"):
        process.text = text
        assert not process.names({}).has_switch, "it is faulty, which rendering tells"
        with pytest.raises(ChatTemplateError):
            process.render([U])

"""Forms that are learned from small templates, which themselves judge: what they write of a message is read back."""

import json
import re
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.runtime.tokenizer.template_files import NamedTemplates
from mlxr.server.chat.delta import ContentDelta, Delta, ReasoningDelta, ToolArguments, ToolStart
from mlxr.server.chat.formats.registry import family_of
from mlxr.server.chat.shown_form import form_as_json, form_lines
from mlxr_tests.chat_formats import a_job, byte_tokenizer, cuts, family, parsed
from mlxr_tests.small_templates import CONTROL, TEMPLATES

QUESTION = {"role": "user", "content": "Hm?"}
CALL = ("get_weather", {"city": 'Rome "é🎉" {x} <b> \\ \n 1', "days": 2})
OTHER: tuple[str, dict[str, Any]] = ("time", {})
THINKS = [name for name in TEMPLATES if name not in ("plain", "harmony", "llama", "python")]
MESSAGES: list[tuple[str, str, str, list[tuple[str, dict[str, Any]]]]] = [
    (name, content, thought, calls)
    for name in THINKS
    for content, thought, calls in (("", "", [CALL]), ("Well.", "I think.", [CALL, OTHER]), ("Well.", "I think.", []))
]
MESSAGES += [("llama", "", "", [CALL]), ("llama", "Well.", "", []), ("python", "Well.", "", [CALL, OTHER])]


def written(name: str, content: str, thought: str, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """What a template writes of an assistant's message, without what ends the turn."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
        message["tool_calls"] = [{"id": f"call0000{n}", "function": function} for n, function in enumerate(functions)]
    if thought:
        message["reasoning_content"] = thought
    messages = family(name, False).messages(a_job(messages=(QUESTION, message)))
    with closing(ChatTemplate(TEMPLATES[name], "here")) as template:
        text, prompt = template.render(messages, False), template.render([QUESTION])
    assert text.startswith(prompt)
    return re.sub(r"(<\|im_end\|>\n|</s>|<\|eot_id\|>)$", "", text[len(prompt) :])


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: f"{message[0]}, {len(message[3])} calls")
def test_what_a_template_writes_is_read_back(message: Any, tokens: bool) -> None:
    name, content, thought, calls = message
    control = CONTROL[name] if tokens else ()
    answer, form = written(*message), family(name, tokens)
    deltas = parsed(form, byte_tokenizer(control), next(cuts(answer, control)), a_job())
    assert [delta for delta in deltas if isinstance(delta, ReasoningDelta)] == (
        [ReasoningDelta(thought)] if thought else []
    )
    assert [delta for delta in deltas if isinstance(delta, ContentDelta)] == (
        [ContentDelta(content)] if content else []
    )
    starts = [delta.name for delta in deltas if isinstance(delta, ToolStart)]
    arguments = [json.loads(delta.text) for delta in deltas if isinstance(delta, ToolArguments)]
    assert list(zip(starts, arguments, strict=True)) == calls, answer


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_where_an_answer_is_cut_changes_nothing(data: st.DataObject) -> None:
    message = data.draw(st.sampled_from(MESSAGES))
    answer, tokenizer = written(*message), byte_tokenizer()
    places = sorted(data.draw(st.sets(st.integers(1, len(answer) - 1), max_size=12)))
    pieces = [answer[start:end] for start, end in zip([0, *places], [*places, len(answer)], strict=True)]
    form = family(message[0], False)
    assert parsed(form, tokenizer, pieces, a_job()) == parsed(form, tokenizer, [answer], a_job())


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("qwen", 'I write <tool_call> and {"name": 1}, not more. '),
        ("qwen", '<tool_call>\n{"title": "x", "name": "f"}\n'),
        ("qwen", " <tool_call> \n<tool_call>"),
        ("coder", "Use <tool_call> or <function=f g> here."),
        ("coder", "a  <tool_call>\n<function=\n"),
        ("glm", "<tool_call>two words<arg_key>"),
        ("kimi", "<|calls_begin|> said nobody <|call_begin|>functions."),
        ("python", "<|tool_call_start|>[a link](there)"),
        ("mistral", "[TOOL_CALLS] is a marker"),
        ("llama", ' {"name": "nobody", "parameters": {}} '),
        ("llama", '{"city": "Rome"}'),
    ],
)
def test_what_is_no_call_is_text_exactly_as_it_came(name: str, answer: str) -> None:
    for pieces in cuts(answer, ()):
        assert parsed(family(name, False), byte_tokenizer(), pieces, a_job()) == [ContentDelta(answer)], pieces


def test_text_that_is_no_call_comes_late_by_a_marker_at_most() -> None:
    answer = "Well, <b>: a <tool is no <tool_call, and 1 < 2.\n\n" * 4
    form, tokenizer = family("qwen", False), byte_tokenizer()
    for end in range(1, len(answer)):
        deltas: list[Delta] = parsed(form, tokenizer, [answer[:end]], a_job(), is_partial=True)
        told = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
        assert answer.startswith(told) and len(told) >= end - len("\n\n<tool_call>")


SHOWN = {
    "qwen": {
        "call": '<tool_call>\n{"name": "NAME", "arguments": {ARGUMENTS}}\n</tool_call>',
        "thought": "<think> </think>",
    },
    "llama": {"call": '{"name": "NAME", "parameters": {ARGUMENTS}}'},
    "mistral": {"call": "[TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{ARGUMENTS}", "thought": "[THINK] [/THINK]"},
    "coder": {
        "call": "<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>",
        "thought": "<think> </think>",
    },
    "python": {"call": 'NAME(KEY="VALUE")', "section": "<|tool_call_start|>[ ]<|tool_call_end|>"},
}


@pytest.mark.parametrize("name", SHOWN)
def test_the_form_is_shown(name: str) -> None:
    told = dict(form_lines(NamedTemplates({"default": TEMPLATES[name]}, "here")))
    assert {key: " ".join(map(json.loads, told[key].split(" to "))) for key in SHOWN[name]} == SHOWN[name]
    assert told["calls"].endswith("learned from the template")
    whole = form_as_json(NamedTemplates({"default": TEMPLATES[name]}, "here"))
    assert json.loads(json.dumps(whole)) == whole and whole is not None and whole["origin"] == "rendered"


WORDS = (
    "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% if tools %}Call one by "
    '<do>{"name": NAME, "parameters": ARGUMENTS}</do>.{% endif %}'
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
)


def test_where_no_rendering_shows_calls_words_do_or_the_form_is_ours() -> None:
    told = dict(form_lines(NamedTemplates({"default": WORDS}, "here")))
    assert told["calls"].endswith("learned from what the template tells the model")
    assert json.loads(told["call"]) == '<do>{"name": "NAME", "parameters": {ARGUMENTS}}</do>'
    ours = dict(form_lines(NamedTemplates({"default": TEMPLATES["plain"]}, "here")))
    assert ours["calls"].endswith("not the template's own: the system message asks for it")
    faulty = form_lines(NamedTemplates({"default": "{% for %}"}, "here"))
    assert faulty == [("calls", "not known: the chat template is faulty")]


ARGUMENTS = "{% for k, v in c.function.arguments.items() %}ONE{% endfor %}"
ODD = {  # what writes a call, what it writes, and how the form is shown
    "a dict of Python": (
        "<call>{{ {'name': c.function.name, 'args': c.function.arguments} }}</call>",
        "<call>{'name': 'get_weather', 'args': {'city': 'Rome', 'days': 2}}</call>",
        "<call>{'name': 'NAME', 'args': {ARGUMENTS}}</call>",
    ),
    "the name as a key": (
        '>> {"{{ c.function.name }}": {{ c.function.arguments | tojson }}}',
        '>> {"get_weather": {"city": "Rome", "days": 2}}',
        '>> {"NAME": {ARGUMENTS}}',
    ),
    "arguments in brackets": (
        "(tool {{ c.function.name }}" + ARGUMENTS.replace("ONE", " (:{{ k }} {{ v | tojson }})") + ")",
        '(tool get_weather (:city "Rome") (:days 2))',
        '(tool NAME (:KEY "VALUE"))',
    ),
    "no ends": (
        "~{{ c.function.name }}" + ARGUMENTS.replace("ONE", "|{{ k }}={{ v | tojson }}") + "~",
        '~get_weather|city="Rome"|days=2~',
        '~NAME|KEY="VALUE"~',
    ),
    "names in both tags": (
        "[TOOL={{ c.function.name }}]" + ARGUMENTS.replace("ONE", "[{{ k }}]{{ v }}[/{{ k }}]") + "[/TOOL]",
        "[TOOL=get_weather][city]Rome[/city][days]2[/days][/TOOL]",
        "[TOOL=NAME][KEY]VALUE[/KEY][/TOOL]",
    ),
    "texts of their own": (
        "<{{ c.function.name }}>"
        + ARGUMENTS.replace(
            "ONE", "{% if v is string %}<t {{ k }}>{{ v }}</t>{% else %}<d {{ k }}>{{ v | tojson }}</d>{% endif %}"
        )
        + "<fin>",
        "<get_weather><t city>Rome</t><d days>2</d><fin>",
        "<NAME><d KEY>VALUE</d><fin>",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_forms_that_nobody_has(name: str) -> None:
    program, answer, expected = ODD[name]
    text = (
        "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}[{{ m.role }}]"
        "{{ m.content }}{% for c in m.tool_calls or [] %}CALL{% endfor %}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    ).replace("CALL", program)
    with closing(ChatTemplate(text, "here")) as template:
        form = family_of(template, {}, {})
    told = dict(form_lines(NamedTemplates({"default": text}, "here")))
    assert json.loads(told["call"]) == expected
    for pieces in cuts(answer, ()):
        start, arguments = parsed(form, byte_tokenizer(), pieces, a_job())
        assert isinstance(start, ToolStart) and start.name == "get_weather"
        assert isinstance(arguments, ToolArguments) and json.loads(arguments.text) == {"city": "Rome", "days": 2}


REMINDED = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}<|begin|><|{{ m.role }}|>"
    "{% if m.reasoning_content %}<|inner>thought\n{{ m.reasoning_content }}<inner|>{% endif %}{{ m.content }}"
    '{% for c in m.tool_calls or [] %}\nDo: {"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n{% endfor %}{% if not m.tool_calls %}<|over|>{% endif %}{% endfor %}"
    "<|begin|><|system|>To call, write Do: and JSON.<|over|>"
    "{% if add_generation_prompt %}<|begin|><|assistant|>{% endif %}"
)


def test_instructions_after_each_conversation_are_no_part_of_an_answer() -> None:
    told = dict(form_lines(NamedTemplates({"default": REMINDED}, "here")))
    assert json.loads(told["turn ends"]) == "<|over|>"
    assert json.loads(told["call"]) == 'Do: {"name": "NAME", "arguments": {ARGUMENTS}}'
    with closing(ChatTemplate(REMINDED, "here")) as template:
        form = family_of(template, {}, {})
    for answer in ("<|assistant|>Hi<|over|>", "<|inner><|inner>thought\n<inner|>Hi<|over|>\n"):
        for pieces in cuts(answer, ()):
            assert parsed(form, byte_tokenizer(), pieces, a_job()) == [ContentDelta("Hi")], pieces

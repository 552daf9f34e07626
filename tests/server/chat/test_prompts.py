"""Prompts: what templates of each family make of tools, calls and results. They are our own, in the families' form."""

import asyncio
from contextlib import closing
from functools import reduce
from typing import Any

import pytest

from mlxr.compiler.errors import EngineError, PromptTooLongError, RequestError
from mlxr.runtime.memory.context_limit import ContextLimit
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.server.chat.chat_format import ChatFormat
from mlxr.server.chat.chat_job import ChatJob
from mlxr_tests.chat_formats import a_job, byte_tokenizer

CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Róme"}'}},
    {"id": "call_2", "type": "function", "function": {"name": "time", "arguments": {}}},
]
MESSAGES = (
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    {"role": "assistant", "content": "Well", "reasoning_content": "hm", "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "call_2", "content": "noon"},
    {"role": "tool", "tool_call_id": "call_1", "content": "sun"},
)
NAMES = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
QWEN = (
    NAMES
    + """\
{%- for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}
{{- m.content }}
{%- for c in m.tool_calls %}<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson
}}}</tool_call>{% endfor %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""
)
LLAMA = (
    NAMES
    + """\
{%- for m in messages %}<|start_header_id|>{{ m.role }}|{% if 'tool_calls' in m %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('only one') }}{% endif %}
{%- set c = m.tool_calls[0].function %}{"name": "{{ c.name }}", "parameters": {{ c.arguments | tojson }}}
{%- elif m.role == 'tool' %}ipython {{ m.content }}{% else %}{{ m.content | trim }}{% endif %}{% endfor %}"""
)
MISTRAL = (
    NAMES
    + """\
{%- for m in messages %}{% if m.tool_calls is defined %}[TOOL_CALLS][
{%- for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('length 9!') }}{% endif %}
{{- c.function | tojson }}{% endfor %}]
{%- elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('length 9!') }}{% endif %}
{{- '[TOOL_RESULTS]' + m.content }}{% else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %}"""
)
OLD_MISTRAL = (
    NAMES
    + """\
{%- for message in messages %}{% if message['role'] == 'tool_calls' %}{{ '[TOOL_CALLS]' + message['content'] }}
{%- elif message['role'] == 'tool_results' %}{{ '[TOOL_RESULTS]' + message['content'] }}
{%- elif message['role'] in ('user', 'assistant') %}{{ message['content'] }} {% endif %}{% endfor %}"""
)
HARMONY = (
    NAMES
    + """\
{%- for m in messages %}<|start|>{{ m.role }}{% if 'tool_calls' in m %}
{%- if m.content and m.thinking %}{{ raise_exception('not both') }}{% endif %}
{%- if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}{% endif %}
{{- ' to=functions.' + m.tool_calls[0].function.name }}<|message|>{{ m.tool_calls[0].function.arguments | tojson }}
{%- else %}<|message|>{{ m.content }}{% endif %}{% endfor %}"""
)
GLM = (
    NAMES
    + """\
{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls %}<tool_call>{{ c.function.name }}
{%- for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>{% endfor %}
</tool_call>{% endfor %}{% endfor %}"""
)
SMOLLM = """\
{%- for tool in xml_tools or [] %}{{ tool.name }} {% endfor %}
{%- for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"""
TEXT = QWEN.replace("c.function.arguments | tojson", "'' + c.function.arguments")
HEAD = "get_weather time "
FIRST, SECOND = '{"name": "get_weather", "arguments": {"city": "Róme"}}', '{"name": "time", "arguments": {}}'
EXPECTED = {
    "qwen": (
        QWEN,
        f"{HEAD}<user>Hi<assistant><think>hm</think>Well<tool_call>{FIRST}</tool_call><tool_call>{SECOND}</tool_call>"
        "<tool>noon<tool>sun<assistant>",
    ),
    "arguments as text": (
        TEXT,
        f"{HEAD}<user>Hi<assistant><think>hm</think>Well<tool_call>{FIRST}</tool_call><tool_call>{SECOND}</tool_call>"
        "<tool>noon<tool>sun<assistant>",
    ),
    "llama": (
        LLAMA,
        f"{HEAD}<|start_header_id|>user|Hi<|start_header_id|>assistant|Well<|start_header_id|>assistant|"
        + FIRST.replace("arguments", "parameters")
        + "<|start_header_id|>tool|ipython sun<|start_header_id|>assistant|"
        + SECOND.replace("arguments", "parameters")
        + "<|start_header_id|>tool|ipython noon",
    ),
    "mistral": (
        MISTRAL,
        f"{HEAD}[INST]Hi[/INST][TOOL_CALLS][{FIRST}{SECOND}][TOOL_RESULTS]noon[TOOL_RESULTS]sun",
    ),
    "old mistral": (
        OLD_MISTRAL,
        f'{HEAD}Hi Well [TOOL_CALLS][{FIRST[:-1]}, "id": "ID1"}}, {SECOND[:-1]}, "id": "ID2"}}]'
        '[TOOL_RESULTS]{"content": "noon", "call_id": "ID2"}[TOOL_RESULTS]{"content": "sun", "call_id": "ID1"}',
    ),
    "harmony": (
        HARMONY,
        f"{HEAD}<|start|>user<|message|>Hi<|start|>assistant<|channel|>analysis<|message|>hm\n\nWell"
        ' to=functions.get_weather<|message|>{"city": "Róme"}<|start|>tool<|message|>sun<|start|>assistant'
        " to=functions.time<|message|>{}<|start|>tool<|message|>noon",
    ),
    "glm": (
        GLM,
        f"{HEAD}<|user|>Hi<|assistant|>Well<tool_call>get_weather<arg_key>city</arg_key><arg_value>Róme</arg_value>"
        "</tool_call><tool_call>time</tool_call><|tool|>noon<|tool|>sun",
    ),
    "smollm3": (
        SMOLLM,
        f"{HEAD}<user>Hi<assistant>Well\n<tool_call>\n{FIRST}\n</tool_call>\n<tool_call>\n"
        f"{SECOND}\n</tool_call><tool>noon<tool>sun",
    ),
}
TOKENIZER = byte_tokenizer()


def prompt(template: str, job: ChatJob, context: int | None = None, tool_use: str | None = None) -> str:
    limit = None if context is None else ContextLimit(context, context)
    with closing(ChatFormat(ChatTemplate(template, "here", tool_use=tool_use), TOKENIZER, limit)) as chat:
        return TOKENIZER.decode(asyncio.run(chat.prompt(job)))


@pytest.mark.parametrize("name", EXPECTED)
def test_tools_calls_and_results_are_written_as_the_family_does(name: str) -> None:
    template, expected = EXPECTED[name]
    text = prompt(template, a_job(messages=MESSAGES))
    if name == "old mistral":  # ids of nine letters, the same for a call and its result
        first, second = text.split('"id": "')[1][:9], text.split('"id": "')[2][:9]
        text = text.replace(first, "ID1").replace(second, "ID2")
    assert text == expected
    without = prompt(template, a_job(messages=MESSAGES[:1], tool_choice="none"))
    assert "get_weather" not in without and "Hi" in without


def test_the_last_message_is_continued_where_its_text_ends() -> None:
    end = {"role": "assistant", "content": "It is "}
    assert prompt(QWEN, a_job(messages=(MESSAGES[0], end), continue_final=True)) == f"{HEAD}<user>Hi<assistant>It is "
    trimmed = prompt(LLAMA, a_job(messages=(MESSAGES[0], end), continue_final=True))
    assert trimmed.endswith("assistant|It is")
    with pytest.raises(RequestError, match="the chat template changes its text"):
        prompt(QWEN.replace("m.content", "m.content | upper"), a_job(messages=(MESSAGES[0], end), continue_final=True))


def test_instructions_get_the_role_that_the_template_knows() -> None:
    first, second = ({"role": "developer", "content": text} for text in ("Be brief.", "Be kind."))
    messages = (first, second, MESSAGES[0])
    assert prompt(QWEN, a_job(messages=messages)).startswith(f"{HEAD}<system>Be brief.<system>Be kind.<user>")
    assert "<|start|>developer<|message|>Be brief.\n\nBe kind.<|start|>user" in prompt(
        HARMONY, a_job(messages=messages)
    )


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_line_that_changes_with_each_request_is_no_part_of_the_prompt(role: str) -> None:
    line, user = "x-anthropic-billing-header: cc_version=2; cch=7f;", {"role": "user", "content": "Hi"}

    def written(*messages: dict[str, Any]) -> str:
        return prompt(QWEN, a_job(messages=messages, tools=()))

    rules = {"role": role, "content": "Be brief.\nBe kind."}
    parts = [{"type": "text", "text": text} for text in (line, "Be brief.", "Be kind.")]
    for content in (f"{line}\nBe brief.\nBe kind.", parts):
        assert written({"role": role, "content": content}, user) == written(rules, user)
    assert written({"role": role, "content": line}, user) == written(user)
    assert line in written(rules, {"role": "user", "content": line}), "what users say stays"


def test_a_template_for_tools_has_a_family_of_its_own() -> None:
    plain = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    for_tools = QWEN.replace("tools or []", "tools")  # as Hermes, which fails without tools
    with_tools = prompt(plain, a_job(messages=MESSAGES), tool_use=for_tools)
    assert with_tools == EXPECTED["qwen"][1]
    assert prompt(plain, a_job(messages=MESSAGES[:1], tool_choice="none"), tool_use=for_tools) == "[user]Hi"
    told = prompt(plain, a_job(messages=MESSAGES, tools=()), tool_use=for_tools)
    assert told == with_tools.removeprefix(HEAD), "what was called is told, though nothing may be"
    with closing(ChatFormat(ChatTemplate(plain, "here", tool_use=for_tools), TOKENIZER)) as chat:
        assert (chat.family, chat.takes_tools) == ("Hermes", True)


def test_a_format_that_was_closed_says_so() -> None:
    chat = ChatFormat(ChatTemplate(QWEN, "here"), TOKENIZER)
    chat.close()
    with pytest.raises(EngineError, match="the model has been unloaded"):
        asyncio.run(chat.prompt(a_job()))


def test_variables_reach_the_template() -> None:
    template = "{{ enable_thinking }}{{ messages[0].content }}"
    assert prompt(template, a_job(tools=(), variables={"enable_thinking": False})) == "Falsehi"


CALL = {"role": "assistant", "tool_calls": CALLS}
DEEP = {"name": "f", "arguments": reduce(lambda inner, _: {"a": inner}, range(5000), {})}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "nested too deeply": (QWEN, {"messages": ({**CALL, "tool_calls": [{"id": "a", "function": DEEP}]},)}),
    r"messages\[0\].tool_call_id is \[\], and no call": (
        QWEN,
        {"messages": ({"role": "tool", "tool_call_id": [], "content": ""},)},
    ),
    r"messages\[0\].reasoning_content is 3": (
        QWEN,
        {"messages": ({"role": "assistant", "content": "", "reasoning_content": 3},)},
    ),
    "messages is empty": (QWEN, {"messages": ()}),
    r"messages\[0\].role is 'bot'; expected one of system": (QWEN, {"messages": ({"role": "bot", "content": ""},)}),
    r"messages\[0\].content\[0\] is of type 'image_url', and this model reads text alone": (
        QWEN,
        {"messages": ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]},)},
    ),
    r"messages\[1\].tool_call_id is 'x', and no call": (
        QWEN,
        {"messages": (CALL, {"role": "tool", "tool_call_id": "x", "content": ""})},
    ),
    r"tool_calls\[0\].function.arguments is not JSON": (
        QWEN,
        {"messages": ({**CALL, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{"}}]},)},
    ),
    r"tool_calls\[0\].id is None": (QWEN, {"messages": ({**CALL, "tool_calls": [{"function": {"name": "f"}}]},)}),
    "only assistant messages call tools": (QWEN, {"messages": ({**CALL, "role": "user"},)}),
    "tools are given, and the chat template of here has no form of tool calls": ("{{ messages }}", {}),
    "tools are given, and the chat template of here leaves them out": (QWEN.replace("tools", "gadgets"), {}),
    "messages have tool calls, which the chat template of here leaves out": (
        QWEN.replace("tool_calls", "uses"),
        {"messages": MESSAGES, "tools": ()},
    ),
    "it must be the assistant's, and have text": (QWEN, {"continue_final": True}),
    "messages is not a variable of the template's own": (QWEN, {"variables": {"messages": []}}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_rendered_is_refused(message: str) -> None:
    template, options = REFUSED[message]
    with pytest.raises(RequestError, match=message):
        prompt(template, a_job(**options))


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        ({"type": "web_search"}, r"tools\[0\] is of type 'web_search'; expected function"),
        ({"type": "function", "function": {"name": "a b"}}, r"tools\[0\].function.name is 'a b'"),
        ({"type": "function", "function": {"name": "a", "parameters": "x"}}, "expected a JSON schema of an object"),
        ({"type": "function", "function": {"name": "a", "parameters": {"type": "string"}}}, "JSON schema of an object"),
        ({"type": "function", "function": {"name": "a", "parameters": {"required": 3}}}, "JSON schema of an object"),
        ({"type": "function", "function": {"name": "a", "strict": "yes"}}, "strict is 'yes'; expected true or false"),
        ({"type": "function", "function": {"name": "a", "description": 3}}, "description is 3; expected text"),
    ],
)
def test_tools_that_cannot_be_used_are_refused(tool: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        a_job(tools=(tool,))


def test_two_tools_of_one_name_and_texts_far_too_long_are_refused() -> None:
    tool = {"type": "function", "function": {"name": "a"}}
    with pytest.raises(RequestError, match="which another tool has"):
        a_job(tools=(tool, tool))
    with pytest.raises(PromptTooLongError):
        prompt(QWEN, a_job(messages=({"role": "user", "content": "x" * 100_000},)), context=100)

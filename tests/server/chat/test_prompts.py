"""Prompts: what templates of each family make of tools, calls and results. They are our own, in the families' form."""

import asyncio
from contextlib import closing
from dataclasses import replace
from functools import reduce
from typing import Any

import pytest

from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.errors import EngineError, PromptTooLongError
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.memory.fitting_arena import ContextLimit
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.server.chat.chat_format import ChatFormat
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.learned.answer_form import Origin
from mlxr_tests.chat_formats import a_job, byte_tokenizer
from mlxr_tests.invented_templates import INVENTED
from mlxr_tests.small_templates import CONTROL, TEMPLATES

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
TINY = (
    NAMES
    + """\
{%- for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}
{{- m.content }}
{%- for c in m.tool_calls %}<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson
}}}</tool_call>{% endfor %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""
)
OLD_MISTRAL = (
    NAMES
    + """\
{%- for message in messages %}{% if message['role'] == 'tool_calls' %}{{ '[TOOL_CALLS]' + message['content'] }}
{%- elif message['role'] == 'tool_results' %}{{ '[TOOL_RESULTS]' + message['content'] }}
{%- elif message['role'] in ('user', 'assistant') %}{{ message['content'] }} {% endif %}{% endfor %}"""
)
TEXT = TINY.replace("c.function.arguments | tojson", "'' + c.function.arguments")
HEAD = "get_weather time "
FIRST, SECOND = '{"name": "get_weather", "arguments": {"city": "Róme"}}', '{"name": "time", "arguments": {}}'
HERMES = f"{HEAD}<user>Hi<assistant><think>hm</think>Well<tool_call>{FIRST}</tool_call><tool_call>{SECOND}</tool_call>"


def chatml(*turns: str) -> str:
    """A prompt with turns that begin with their roles."""
    return HEAD + "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns) + "<|im_start|>assistant\n"


EXPECTED = {
    "tiny": (TINY, f"{HERMES}<tool>noon<tool>sun<assistant>"),
    "arguments as text": (TEXT, f"{HERMES}<tool>noon<tool>sun<assistant>"),
    "qwen": (
        TEMPLATES["qwen"],
        chatml(
            "user\nHi",
            f"assistant\n<think>\nhm\n</think>\n\nWell<tool_call>\n{FIRST}\n</tool_call>"
            f"<tool_call>\n{SECOND}\n</tool_call>",
            "tool\nnoon",
            "tool\nsun",
        ),
    ),
    "llama": (
        TEMPLATES["llama"],
        HEAD
        + "".join(
            f"<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>"
            for role, text in (
                ("user", "Hi"),
                ("assistant", "Well"),
                ("assistant", FIRST.replace("arguments", "parameters")),
                ("tool", "sun"),
                ("assistant", SECOND.replace("arguments", "parameters")),
                ("tool", "noon"),
            )
        )
        + "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "mistral list": (
        TEMPLATES["mistral list"],
        f"{HEAD}[INST]Hi[/INST][THINK]hm[/THINK]Well[TOOL_CALLS][{FIRST}, {SECOND}]</s>[TOOL_RESULTS]noon"
        "[/TOOL_RESULTS][TOOL_RESULTS]sun[/TOOL_RESULTS]",
    ),
    "old mistral": (
        OLD_MISTRAL,
        f'{HEAD}Hi Well [TOOL_CALLS][{FIRST[:-1]}, "id": "ID1"}}, {SECOND[:-1]}, "id": "ID2"}}]'
        '[TOOL_RESULTS]{"content": "noon", "call_id": "ID2"}[TOOL_RESULTS]{"content": "sun", "call_id": "ID1"}',
    ),
    "harmony": (
        TEMPLATES["harmony"],
        f"{HEAD}<|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>analysis<|message|>hm\n\nWell<|end|>"
        '<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Róme"}<|call|>'
        "<|start|>tool<|message|>sun<|end|><|start|>assistant to=functions.time<|channel|>commentary json<|message|>{}"
        "<|call|><|start|>tool<|message|>noon<|end|><|start|>assistant",
    ),
    "glm": (
        TEMPLATES["glm"],
        chatml(
            "user\nHi",
            "assistant\n<think>hm</think>\nWell<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Róme"
            "</arg_value>\n</tool_call><tool_call>time\n</tool_call>",
            "tool\nnoon",
            "tool\nsun",
        ),
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
    assert prompt(TINY, a_job(messages=(MESSAGES[0], end), continue_final=True)) == f"{HEAD}<user>Hi<assistant>It is "
    trimmed = prompt(TEMPLATES["llama"], a_job(messages=(MESSAGES[0], end), continue_final=True))
    assert trimmed.endswith("assistant<|end_header_id|>\n\nIt is")
    thought = {"role": "assistant", "content": "", "reasoning_content": "It is "}
    within = prompt(TEMPLATES["qwen"], a_job(messages=(MESSAGES[0], thought), continue_final=True))
    assert within.endswith("Hi<|im_end|>\n<|im_start|>assistant\n<think>\nIt is ")
    unknown = prompt(TEMPLATES["llama"], a_job(messages=(MESSAGES[0], thought), continue_final=True))
    assert unknown.endswith("assistant<|end_header_id|>\n\n<think>\nIt is "), "as most models have it"
    bare = prompt(TINY, a_job(messages=(MESSAGES[0],), begins_answer=False))
    assert bare == f"{HEAD}<user>Hi", "what begins the answer is left out"
    with pytest.raises(RequestError, match="the chat template changes its text"):
        prompt(TINY.replace("m.content", "m.content | upper"), a_job(messages=(MESSAGES[0], end), continue_final=True))


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("qwen", "<|im_start|>assistant\n<think>\nIt is\n</think>\n\n"),
        ("mistral", "[/INST][THINK]It is[/THINK]"),
        ("harmony", "<|start|>assistant<|channel|>final<|message|>"),
        ("llama", "<|start_header_id|>assistant<|end_header_id|>\n\n"),
    ],
)
def test_a_text_may_begin_after_reasoning_that_is_given(name: str, begin: str) -> None:
    thought = {"role": "assistant", "content": "", "reasoning_content": "It is"}
    job = a_job(messages=(MESSAGES[0], thought), continue_final="content", tools=())
    assert prompt(TEMPLATES[name], job).endswith(begin)


def test_a_part_of_the_last_message_that_cannot_be_continued_is_told() -> None:
    for message, options, told in (
        ({"content": "It is", "reasoning_content": "Hm"}, {}, "it must have some, and no text"),
        ({"content": ""}, {}, "it must be the assistant's, and have text"),
        (
            {"content": "", "reasoning_content": "Hm"},
            {"variables": {"enable_thinking": False}},
            "the chat template has ended it: switch reasoning on",
        ),
    ):
        switched = TEMPLATES["qwen"] + "{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
        job = a_job(messages=(MESSAGES[0], {"role": "assistant"} | message), continue_final="reasoning_content")
        with pytest.raises(RequestError, match=told):
            prompt(switched, replace(job, **options))


def test_instructions_get_the_role_that_the_template_knows() -> None:
    first, second = ({"role": "developer", "content": text} for text in ("Be brief.", "Be kind."))
    messages = (first, second, MESSAGES[0])
    assert prompt(TINY, a_job(messages=messages)).startswith(f"{HEAD}<system>Be brief.<system>Be kind.<user>")
    assert "<|start|>developer<|message|>Be brief.\n\nBe kind.<|end|><|start|>user" in prompt(
        TEMPLATES["harmony"], a_job(messages=messages)
    )


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_line_that_changes_with_each_request_is_no_part_of_the_prompt(role: str) -> None:
    line, user = "x-anthropic-billing-header: cc_version=2; cch=7f;", {"role": "user", "content": "Hi"}

    def written(*messages: dict[str, Any]) -> str:
        return prompt(TINY, a_job(messages=messages, tools=()))

    rules = {"role": role, "content": "Be brief.\nBe kind."}
    parts = [{"type": "text", "text": text} for text in (line, "Be brief.", "Be kind.")]
    for content in (f"{line}\nBe brief.\nBe kind.", parts):
        assert written({"role": role, "content": content}, user) == written(rules, user)
    assert written({"role": role, "content": line}, user) == written(user)
    assert line in written(rules, {"role": "user", "content": line}), "what users say stays"


def test_a_template_for_tools_has_a_family_of_its_own() -> None:
    plain = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    for_tools = TINY.replace("tools or []", "tools")  # as Hermes, which fails without tools
    with_tools = prompt(plain, a_job(messages=MESSAGES), tool_use=for_tools)
    assert with_tools == EXPECTED["tiny"][1]
    assert prompt(plain, a_job(messages=MESSAGES[:1], tool_choice="none"), tool_use=for_tools) == "[user]Hi"
    told = prompt(plain, a_job(messages=MESSAGES, tools=()), tool_use=for_tools)
    assert told == with_tools.removeprefix(HEAD), "what was called is told, though nothing may be"
    with closing(ChatFormat(ChatTemplate(plain, "here", tool_use=for_tools), TOKENIZER)) as chat:
        assert (chat.family, chat.takes_tools) == ("a JSON object, '<tool_call>'", True)


def test_a_format_that_was_closed_says_so() -> None:
    chat = ChatFormat(ChatTemplate(TINY, "here"), TOKENIZER)
    chat.close()
    with pytest.raises(EngineError, match="the model has been unloaded"):
        asyncio.run(chat.prompt(a_job()))


def test_a_template_without_calls_gets_an_instruction_and_texts(caplog: pytest.LogCaptureFixture) -> None:
    turns = (
        "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}"
        "{{ raise_exception('unknown role') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
    )
    rules = {"role": "system", "content": "Be brief."}
    with closing(ChatFormat(ChatTemplate(turns, "here"), TOKENIZER)) as chat:
        text, again = (TOKENIZER.decode(asyncio.run(chat.prompt(a_job(messages=(rules, *MESSAGES))))) for _ in range(2))
        assert not chat.takes_tools and chat.form.origin is Origin.OURS and text == again
    notes = [record.getMessage() for record in caplog.records if "does not tell the model of tools" in record.message]
    assert len(notes) == 1 and "here: " in notes[0]
    head, _, told = text.partition("[user]")
    assert head.startswith("[system]Be brief.\n\nYou may call") and '"description": "Weather of a city"' in head
    assert told == (
        f"Hi[assistant]Well\n<tool_call>\n{FIRST}\n</tool_call>\n<tool_call>\n{SECOND}\n</tool_call>[user]"
        "<tool_response>\nnoon\n</tool_response>\n<tool_response>\nsun\n</tool_response>[assistant]"
    )
    assert "You may call" not in prompt(turns, a_job(messages=MESSAGES, tool_choice="none"))


def test_variables_reach_the_template() -> None:
    template = "{{ enable_thinking }}{{ messages[0].content }}"
    assert prompt(template, a_job(tools=(), variables={"enable_thinking": False})) == "Falsehi"


CALL = {"role": "assistant", "tool_calls": CALLS}
DEEP = {"name": "f", "arguments": reduce(lambda inner, _: {"a": inner}, range(5000), {})}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "nested too deeply": (TINY, {"messages": ({**CALL, "tool_calls": [{"id": "a", "function": DEEP}]},)}),
    r"messages\[0\].tool_call_id is \[\], and no call": (
        TINY,
        {"messages": ({"role": "tool", "tool_call_id": [], "content": ""},)},
    ),
    r"messages\[0\].reasoning_content is 3": (
        TINY,
        {"messages": ({"role": "assistant", "content": "", "reasoning_content": 3},)},
    ),
    "messages is empty": (TINY, {"messages": ()}),
    r'messages\[0\].role is "bot"; expected one of system': (TINY, {"messages": ({"role": "bot", "content": ""},)}),
    r'messages\[0\].content\[0\] is of type "image_url", and this model reads text alone': (
        TINY,
        {"messages": ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]},)},
    ),
    r'messages\[1\].tool_call_id is "x", and no call': (
        TINY,
        {"messages": (CALL, {"role": "tool", "tool_call_id": "x", "content": ""})},
    ),
    r"tool_calls\[0\].function.arguments is not JSON": (
        TINY,
        {"messages": ({**CALL, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{"}}]},)},
    ),
    r"tool_calls\[0\].id is null": (TINY, {"messages": ({**CALL, "tool_calls": [{"function": {"name": "f"}}]},)}),
    "only assistant messages call tools": (TINY, {"messages": ({**CALL, "role": "user"},)}),
    "it must be the assistant's, and have text": (TINY, {"continue_final": True}),
    "messages is not a variable of the template's own": (TINY, {"variables": {"messages": []}}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_rendered_is_refused(message: str) -> None:
    template, options = REFUSED[message]
    with pytest.raises(RequestError, match=message):
        prompt(template, a_job(**options))


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        ({"type": "web_search"}, r'tools\[0\] is of type "web_search"; expected function'),
        ({"type": "function", "function": {"name": "a b"}}, r'tools\[0\].function.name is "a b"'),
        ({"type": "function", "function": {"name": "a", "parameters": "x"}}, "expected a JSON schema of an object"),
        ({"type": "function", "function": {"name": "a", "parameters": {"type": "string"}}}, "JSON schema of an object"),
        ({"type": "function", "function": {"name": "a", "parameters": {"required": 3}}}, "JSON schema of an object"),
        ({"type": "function", "function": {"name": "a", "strict": "yes"}}, 'strict is "yes"; expected true or false'),
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
        prompt(TINY, a_job(messages=({"role": "user", "content": "x" * 100_000},)), context=100)


@pytest.mark.parametrize(("template", "ends"), [("qwen", True), ("harmony", False)])
def test_an_answer_ends_where_the_template_ends_one(template: str, ends: bool) -> None:
    """Though the model's files name another token alone; gpt-oss writes on after the end of a message."""
    tokenizer = byte_tokenizer(["<|im_end|>", *CONTROL["harmony"]])
    with closing(ChatFormat(ChatTemplate(TEMPLATES[template], "here"), tokenizer)) as chat:
        for sampling in (Sampling(), Sampling(stop_tokens=(1,)), Sampling(ignore_eos=True)):
            job = a_job(sampling=sampling)
            more = (tokenizer.control_tokens["<|im_end|>"],) if ends and not sampling.ignore_eos else ()
            assert chat.constrained(job, asyncio.run(chat.prompt(job))).stop_tokens == (*sampling.stop_tokens, *more)


def test_where_calls_may_follow_a_thought_that_is_too_long_no_text_is_begun() -> None:
    """`<|/why|>` ends it; a text, which the template puts into `<reply>`, is begun only where nothing else may come."""
    invented = INVENTED["wrapped text"]
    tokenizer = byte_tokenizer([*invented.ends, *invented.control])
    with closing(ChatFormat(ChatTemplate(invented.text, "here"), tokenizer)) as chat:
        closings = []
        for tools in ({}, {"tools": ()}):
            job = a_job(thinking_budget=4, **tools)
            thought = chat.constrained(job, asyncio.run(chat.prompt(job))).thought
            assert thought is not None
            closings.append(thought.closing.strip())
    assert closings == ["<|/why|>", "<|/why|><reply>"]

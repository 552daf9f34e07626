"""Answers chosen at random among what a tool choice allows are calls that follow the tools' schemas."""

import json
import random

import jsonschema
import pytest

from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.constraint import Constraint, ConstraintCompiler
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.runtime.tokenizer.library_tokenizer import LibraryTokenizer
from mlxr.server.chat.answer_parser import joined
from mlxr.server.chat.chat_format import ChatFormat
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.delta import ContentDelta, Delta, ReasoningDelta, ToolArguments, ToolStart
from mlxr_tests.chat_formats import WEATHER, a_job, byte_tokenizer, events_of_ids
from mlxr_tests.constrained import tokens_of
from mlxr_tests.few import few
from mlxr_tests.small_templates import CONTROL, TEMPLATES

# A marker is a control token in some files of a model, and text in others; in those of gpt-oss always a token.
FORMS = [name for name in TEMPLATES if name != "plain"]
WAYS = [(name, tokens) for name in FORMS for tokens in (True, False) if tokens or name != "harmony"]
STRICT = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
JSON = Sampling(json_schema={"type": "array", "items": {"type": "integer"}, "maxItems": 3})


def setup(name: str, tokens: bool) -> tuple[ChatFormat, LibraryTokenizer, ConstraintCompiler]:
    tokenizer = byte_tokenizer(CONTROL[name] if tokens else ())
    chat = ChatFormat(ChatTemplate(TEMPLATES[name], "here"), tokenizer)
    return chat, tokenizer, ConstraintCompiler(tokenizer, tokenizer.vocab_size, tokenizer.eos_ids)


def answers(name: str, tokens: bool, job: ChatJob, prompt: str = "", count: int = 4) -> list[list[Delta]]:
    """What random answers are parsed to."""
    chat, tokenizer, compiler = setup(name, tokens)
    ids = tokenizer.encode(prompt, parse_special=True)
    whole = []
    for seed in range(count):
        constraint = compiler.compile(chat.constrained(job, ids))
        assert constraint is not None
        parser, deltas = chat.parser(job, ids), []
        for event in events_of_ids(tokenizer, random_ids(constraint, tokenizer, seed)):
            deltas += parser.push(event)
        whole.append(joined([*deltas, *parser.finish()]))
    compiler.close()
    chat.close()
    return whole


PHRASES = (*CONTROL["harmony"], *CONTROL["glm"], "[TOOL_CALLS]", "[/THINK]", "</parameter>", '{"name"', '"', "}", "]")
"""What is tried more often: at random, few texts would ever end."""
LEADS = ("", "<tool_call>", "[TOOL_CALLS]", '{"name"', "<|tool_call_start|>", "<|calls_begin|>")
"""What is tried first."""


def random_ids(constraint: Constraint, tokenizer: LibraryTokenizer, seed: int) -> list[int]:
    """An answer of tokens that the constraint allows, up to its end."""
    chance, ids = random.Random(seed), []
    phrase = tokenizer.encode(LEADS[seed % len(LEADS)], parse_special=True)
    while not constraint.is_complete:
        assert len(ids) < 5000, "it does not end"
        if not phrase and seed % 2 and (tokens := constraint.forced()):
            ids += tokens
            continue
        allowed = tokens_of(constraint.mask())
        if not phrase and chance.random() < 0.1:
            phrase = tokenizer.encode(chance.choice(PHRASES), parse_special=True)
        if not phrase and tokenizer.eos_id in allowed and chance.random() < 0.3:
            break
        token = phrase.pop(0) if phrase else chance.choice(allowed)
        if token not in allowed:
            phrase, token = [], chance.choice(allowed)
        if token == tokenizer.eos_id:
            break
        constraint.accept(token)
        ids.append(token)
    return ids


def calls_of(deltas: list[Delta]) -> list[tuple[str, object]]:
    names = {delta.index: delta.name for delta in deltas if isinstance(delta, ToolStart)}
    texts = {delta.index: delta.text for delta in deltas if isinstance(delta, ToolArguments)}
    return [(name, json.loads(texts[index])) for index, name in names.items()]


def check(calls: list[tuple[str, object]]) -> None:
    for name, arguments in calls:
        if name == "get_weather":
            jsonschema.validate(arguments, WEATHER["function"]["parameters"])
        else:
            assert name == "time" and isinstance(arguments, dict)


@pytest.mark.parametrize(("name", "tokens"), few(WAYS, WAYS[::4]))
def test_what_must_be_called_is_called(name: str, tokens: bool) -> None:
    for choice, parallel in (("function:get_weather", True), ("required", False), ("required", True)):
        for deltas in answers(name, tokens, a_job(tool_choice=choice, parallel_tool_calls=parallel)):
            calls = calls_of(deltas)
            assert calls and not any(isinstance(delta, ContentDelta) for delta in deltas)
            check(calls)
            assert len(calls) == 1 or (choice, parallel) == ("required", True)
            assert choice == "required" or calls[0][0] == "get_weather"


@pytest.mark.parametrize(("name", "tokens"), few(WAYS, WAYS[1::2]))
def test_strict_tools_are_called_as_they_say_or_not_at_all(name: str, tokens: bool) -> None:
    numbers = set()
    for deltas in answers(name, tokens, a_job(tools=(STRICT,), parallel_tool_calls=False), count=12):
        calls = calls_of(deltas)
        check(calls)
        numbers.add(len(calls))
    assert numbers == {0, 1}


@pytest.mark.parametrize("name", ["qwen", "harmony", "mistral", "llama"])
def test_the_requests_own_form_holds_for_the_answer_beside_calls(name: str) -> None:
    kinds = set()
    for deltas in answers(name, True, a_job(sampling=JSON), count=12):
        if calls := calls_of(deltas):
            check(calls)
            kinds.add("calls")
        elif text := "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta)):
            jsonschema.validate(json.loads(text), JSON.json_schema)
            kinds.add("text")
    assert kinds


@pytest.mark.parametrize("name", ["qwen", "mistral"])
def test_json_may_stand_in_a_code_fence_which_is_dropped(name: str) -> None:
    chat, tokenizer, compiler = setup(name, True)
    job = a_job(sampling=JSON, tools=())
    constraint, parser = compiler.compile(chat.constrained(job, [])), chat.parser(job, [])
    assert constraint is not None
    ids = tokenizer.encode("```json\n[1, 2]\n```")
    for token in ids:
        constraint.accept(token)
    deltas = [delta for event in events_of_ids(tokenizer, ids) for delta in parser.push(event)]
    assert constraint.is_complete or tokenizer.eos_id in tokens_of(constraint.mask())
    assert joined([*deltas, *parser.finish()]) == [ContentDelta("[1, 2]")]
    compiler.close()
    chat.close()


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
def test_thinking_comes_before_the_requests_own_form(tokens: bool) -> None:
    for prompt in ("hi<think>\n", "hi", "hi<think></think>\n\n"):
        for deltas in answers("qwen", tokens, a_job(tools=(), sampling=JSON), prompt):
            text = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
            jsonschema.validate(json.loads(text), JSON.json_schema)
            if prompt.endswith("</think>\n\n"):
                assert not any(isinstance(delta, ReasoningDelta) for delta in deltas)


def test_what_cannot_be_combined_is_refused_and_the_rest_left_alone() -> None:
    chat, _, _ = setup("qwen", True)
    with pytest.raises(RequestError, match="grammar cannot be combined with tools"):
        chat.constrained(a_job(sampling=Sampling(grammar='start: "a"')), [])
    free = a_job()
    assert chat.constrained(free, []) is free.sampling
    chat.close()

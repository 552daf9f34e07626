"""Budgets of reasoning: what each API asks for, and what a real engine answers by templates that think."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pytest

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.engine_thread import EngineThread
from mlxr.runtime.engine.reasoning import Reasoning as Asked
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.server.anthropic.conversation import job_of as job_of_anthropic
from mlxr.server.anthropic.messages_request import MessagesRequest
from mlxr.server.chat.answer import AnswerEvent, answer
from mlxr.server.chat.chat_format import ChatFormat
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.delta import ContentDelta, ReasoningDelta
from mlxr.server.errors import ApiError
from mlxr.server.ollama.chat import ChatRequest as OllamaRequest
from mlxr.server.openai.chat_request import ChatRequest, job_of
from mlxr.server.openai.responses_request import ResponsesRequest, toolkit_of
from mlxr.server.openai.responses_request import job_of as job_of_response
from mlxr_tests.storyteller import TINY, tiny_spec

TURNS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}OPENING{{ m.reasoning_content }}CLOSING"
    "{% endif %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
OWN = TURNS.replace("OPENING", "<mind>\n").replace("CLOSING", "\n</mind><say>\n")
OPENED = OWN.removesuffix("{% endif %}") + "<mind>\n{% endif %}"
SWITCHED = OWN.removesuffix("{% endif %}") + "{% if enable_thinking is not false %}<mind>\n{% endif %}{% endif %}"
USER = ({"role": "user", "content": "Hi"},)
SAMPLING = mlxr.Sampling(max_tokens=40)


@dataclass(frozen=True)
class Served:
    engine: EngineThread
    format: ChatFormat


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineThread]:
    spec = tiny_spec(model={"context": 256}, cache={"max_sequences": 2}, compute="exact")
    with EngineThread(lambda: mlxr.load(compile_spec(spec).artifact, TINY, host="cpu")) as loaded:
        yield loaded


async def _pieces(model: Served, job: ChatJob) -> list[AnswerEvent]:
    return [piece async for piece in answer(model, job)]


def told(engine: EngineThread, template: str, job: ChatJob, **defaults: Any) -> tuple[str, str, int]:
    """The reasoning and the text of an answer, and how many of its tokens say reasoning."""
    tokenizer = engine.model.require_tokenizer()
    with closing(ChatFormat(ChatTemplate(template, "here"), tokenizer, None, Asked(**defaults))) as chat:
        pieces = asyncio.run(_pieces(Served(engine, chat), job))
    deltas = [delta for piece in pieces for delta in piece.deltas]
    texts = ["".join(d.text for d in deltas if isinstance(d, kind)) for kind in (ReasoningDelta, ContentDelta)]
    return texts[0], texts[1], sum(any(isinstance(d, ReasoningDelta) for d in piece.deltas) for piece in pieces)


def test_a_thought_ends_at_its_budget_by_the_templates_own_marker(engine: EngineThread) -> None:
    free = told(engine, OPENED, ChatJob(USER, SAMPLING))
    assert free[0] and not free[1], "a model that never ends its thought"
    none = told(engine, OPENED, ChatJob(USER, SAMPLING, thinking_budget=0))
    assert none[0] == "" and none[1] and "mind" not in none[1] and "say" not in none[1]
    some = told(engine, OPENED, ChatJob(USER, SAMPLING, thinking_budget=6))
    assert some[0] and free[0].startswith(some[0]) and some[1] and 0 < some[2] <= 6
    assert told(engine, OPENED, ChatJob(USER, SAMPLING), budget=6) == some, "the server's default"
    assert told(engine, OPENED, ChatJob(USER, SAMPLING, thinking_budget=0), budget=6) == none
    assert told(engine, OWN, ChatJob(USER, SAMPLING, thinking_budget=0))[0] == "", "it may not think, and did not"


def test_switched_off_is_what_the_template_does_or_a_budget_of_none(engine: EngineThread) -> None:
    off = {"enable_thinking": False}
    none = told(engine, OPENED, ChatJob(USER, SAMPLING, thinking_budget=0))
    assert told(engine, OPENED, ChatJob(USER, SAMPLING, variables=off)) == none
    own = told(engine, SWITCHED, ChatJob(USER, SAMPLING, variables=off))
    assert own == told(engine, OWN, ChatJob(USER, SAMPLING)) and own[1]
    assert told(engine, SWITCHED, ChatJob(USER, SAMPLING), variables=off) == own, "the server's default"
    on = told(engine, SWITCHED, ChatJob(USER, SAMPLING, variables={"enable_thinking": True}), variables=off)
    assert on[0] and not on[1]


@pytest.mark.parametrize("budget", [0, 5])
def test_a_schema_holds_for_what_follows(engine: EngineThread, budget: int) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    sampling = replace(SAMPLING, json_schema=schema, max_tokens=100, temperature=1.0, seed=1)
    thought, text, _ = told(engine, OPENED, ChatJob(USER, sampling, thinking_budget=budget))
    assert bool(thought) == bool(budget) and json.loads(text)["a"] in (1, 2)


def test_the_log_says_once_that_a_template_knows_no_reasoning(
    engine: EngineThread, caplog: pytest.LogCaptureFixture
) -> None:
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    for template, times in ((plain, 1), (OWN, 0), (plain + "{{ thinking_budget }}", 0)):
        caplog.clear()
        with closing(ChatFormat(ChatTemplate(template, "m"), engine.model.require_tokenizer())) as chat:
            for job in (ChatJob(USER, SAMPLING), *2 * [ChatJob(USER, SAMPLING, thinking_budget=7)]):
                assert asyncio.run(chat.prompt(job))
        told = [record.getMessage() for record in caplog.records]
        assert told == times * ["m: a budget of reasoning has no effect: the chat template knows no reasoning"]


def test_a_template_is_told_its_budget(engine: EngineThread) -> None:
    with closing(ChatFormat(ChatTemplate("{{ thinking_budget }}", "here"), engine.model.require_tokenizer())) as chat:
        assert chat._plain.render(ChatJob(USER, SAMPLING, thinking_budget=7)) == "7"


ASK = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("fields", "budget", "variables"),
    [
        ({}, None, {}),
        ({"reasoning": {"max_tokens": 9}}, 9, {"enable_thinking": True}),
        ({"reasoning": {"max_tokens": 0}}, 0, {}),
        ({"reasoning": {"enabled": False}}, None, {"enable_thinking": False}),
        ({"reasoning": {"effort": "none"}}, None, {"enable_thinking": False, "reasoning_effort": "none"}),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, 9, {"enable_thinking": True}),
        ({"thinking": {"type": "disabled"}}, None, {"enable_thinking": False}),
        ({"thinking_budget": 9, "enable_thinking": True}, 9, {"enable_thinking": True}),
        ({"thinking_budget_tokens": 9}, 9, {}),
        ({"reasoning_budget": -1}, None, {}),
        ({"thinking_token_budget": 9, "reasoning": {"max_tokens": 9}}, 9, {"enable_thinking": True}),
        (
            {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}},
            None,
            {"enable_thinking": False},
        ),
    ],
)
def test_names_of_openais_api_and_of_other_servers(
    fields: dict[str, Any], budget: int | None, variables: dict[str, Any]
) -> None:
    job = job_of(ChatRequest.model_validate(ASK | fields))
    assert (job.thinking_budget, job.variables) == (budget, variables)


def test_other_apis_and_what_is_refused() -> None:
    response = ResponsesRequest.model_validate({"model": "m", "input": "Hi", "reasoning": {"max_tokens": 9}})
    assert job_of_response(response, toolkit_of(response)).thinking_budget == 9
    thinking = {"max_tokens": 5, "thinking": {"type": "enabled", "budget_tokens": 9}}
    assert job_of_anthropic(MessagesRequest.model_validate(ASK | thinking)).thinking_budget == 9
    assert OllamaRequest.model_validate(ASK | {"think": 9}).thinking_budget == 9
    assert OllamaRequest.model_validate(ASK | {"think": True}).thinking_budget is None
    assert not ChatRequest.model_validate(ASK | {"reasoning": {"exclude": True}}).shows_reasoning
    for fields, message in (
        ({"thinking_budget": -2}, "thinking_budget is -2; expected 0 or more"),
        ({"thinking_budget": 1, "reasoning": {"max_tokens": 2}}, "reasoning.max_tokens and thinking_budget are given"),
    ):
        with pytest.raises(ApiError, match=message):
            job_of(ChatRequest.model_validate(ASK | fields))
    with pytest.raises(RequestError, match="thinking_budget is -1"):
        ChatJob(USER, SAMPLING, thinking_budget=-1)

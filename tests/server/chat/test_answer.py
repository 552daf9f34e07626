"""Answers of a real engine, as deltas."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import jsonschema
import pytest

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.engine_thread import EngineThread
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.server.chat.answer import AnswerEvent, answer
from mlxr.server.chat.chat_format import ChatFormat
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.delta import ContentDelta, ToolStart
from mlxr_tests.few import few
from mlxr_tests.storyteller import Q8_0, storyteller_spec

PLAIN = "{% for message in messages %}{{ message.content }} {% endfor %}"
HERMES = """{% for tool in tools or [] %}{{ tool }}{% endfor %}{% for m in messages %}{{ m.content }} {% for c in
m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}"""
USER = ({"role": "user", "content": "Once upon a time"},)


@dataclass(frozen=True)
class Served:
    engine: EngineThread
    format: ChatFormat


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineThread]:
    artifact = compile_spec(
        storyteller_spec(model={"context": 512}, cache={"max_sequences": 3}, prefill_chunk=16, compute="exact")
    ).artifact
    with EngineThread(lambda: mlxr.load(artifact, Q8_0, host="cpu")) as loaded:
        yield loaded


@pytest.fixture(params=[PLAIN], ids=["plain"])
def served(engine: EngineThread, request: pytest.FixtureRequest) -> Iterator[Served]:
    with closing(ChatFormat(ChatTemplate(request.param, "here"), engine.model.require_tokenizer())) as chat:
        yield Served(engine, chat)


def ask(model: Served, job: ChatJob) -> list[AnswerEvent]:
    async def read() -> list[AnswerEvent]:
        return [piece async for piece in answer(model, job)]

    return asyncio.run(read())


def test_a_plain_answer_is_that_of_the_engine(served: Served) -> None:
    sampling = mlxr.Sampling(temperature=1.0, seed=3, max_tokens=20, n=2)
    job = ChatJob(USER, sampling)
    pieces = ask(served, job)
    prompt = served.engine.model.require_tokenizer().encode("Once upon a time ", add_special=False)
    for index, expected in enumerate(served.engine.generate_all([prompt], sampling)):
        text = ""
        for piece in pieces:
            if piece.index == index:
                assert all(isinstance(delta, ContentDelta) for delta in piece.deltas)
                text += "".join(delta.text for delta in piece.deltas if isinstance(delta, ContentDelta))
        assert text == expected.text != ""
    assert not any(piece.has_tool_calls for piece in pieces)


@pytest.mark.parametrize("served", [HERMES], indirect=True, ids=["hermes"])
@pytest.mark.parametrize("choice", few(["required", "function:get_weather"], ["function:get_weather"]))
def test_a_model_that_knows_no_tools_calls_one_where_it_must(served: Served, choice: str) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Paris"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": schema}}
    sampling = mlxr.Sampling(temperature=1.0, seed=4, max_tokens=200)
    job = ChatJob(USER, sampling, (tool,), tool_choice=choice, parallel_tool_calls=False)
    pieces = ask(served, job)
    start, *arguments = [delta for piece in pieces for delta in piece.deltas]
    assert isinstance(start, ToolStart) and start.name == "get_weather" and len(arguments) > 1
    jsonschema.validate(json.loads("".join(delta.text for delta in arguments)), schema)
    assert pieces[-1].event.finish_reason == "stop" and pieces[-1].has_tool_calls


def test_parameters_that_cannot_be_enforced_are_named(served: Served, engine: EngineThread) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"not": {}}, "strict": True}}
    message = "the tools or the form of the answer cannot be enforced: grammar"
    chat = ChatFormat(ChatTemplate(HERMES, "here"), engine.model.require_tokenizer())
    with closing(chat), pytest.raises(RequestError, match=message):
        ask(Served(engine, chat), ChatJob(USER, mlxr.Sampling(), (tool,)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tool_choice": "some"}, "expected auto, none, required"),
        ({"tool_choice": "required"}, "there are no tools"),
        (
            {"tool_choice": "function:g", "tools": ({"type": "function", "function": {"name": "f"}},)},
            "names the tool 'g'",
        ),
    ],
)
def test_choices_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ChatJob((), mlxr.Sampling(), **options)

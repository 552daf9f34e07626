"""Answers of a real engine, as deltas."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.engine import Engine
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.server.chat.answer import Piece, answer
from mlxr.server.chat.chat_format import ChatFormat
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.delta import Content
from mlxr_tests.storyteller import TINY, tiny_spec

PLAIN = "{% for message in messages %}{{ message.content }} {% endfor %}"


@dataclass(frozen=True)
class Served:
    engine: Engine
    format: ChatFormat


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    artifact = compile_spec(tiny_spec(cache={"max_sequences": 4})).artifact
    with Engine(lambda: mlxr.load(artifact, TINY, host="cpu")) as engine:
        chat = ChatFormat(ChatTemplate(PLAIN, "here"), engine.model.require_tokenizer())
        yield Served(engine, chat)
        chat.close()


def ask(model: Served, job: ChatJob) -> list[Piece]:
    async def read() -> list[Piece]:
        return [piece async for piece in answer(model, job)]

    return asyncio.run(read())


def test_a_plain_answer_is_that_of_the_engine(served: Served) -> None:
    sampling = mlxr.Sampling(temperature=1.0, seed=3, max_tokens=20, n=2)
    job = ChatJob(({"role": "user", "content": "Once upon a time"},), sampling)
    pieces = ask(served, job)
    prompt = served.engine.model.require_tokenizer().encode("Once upon a time ", add_special=False)
    for index, expected in enumerate(served.engine.generate_all([prompt], sampling)):
        text = ""
        for piece in pieces:
            if piece.index == index:
                assert all(isinstance(delta, Content) for delta in piece.deltas)
                text += "".join(delta.text for delta in piece.deltas if isinstance(delta, Content))
        assert text == expected.text != ""
    assert not any(piece.has_tool_calls for piece in pieces)


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

"""Answers in Ollama's form: records, of which the last has the numbers; a stream has one on each line."""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from fastapi import Request
from starlette.responses import Response

from mlxr.server.blocks import Blocks, Change, arguments_of
from mlxr.server.chat.answer import AnswerEvent
from mlxr.server.documents.answers import Told
from mlxr.server.documents.json_form import Form, JsonAnswer, json_text
from mlxr.server.documents.ollama_answers import OllamaCall, OllamaEnd, OllamaFunction, OllamaMore
from mlxr.server.documents.openai_answers import ChatToken
from mlxr.server.errors import ollama_body
from mlxr.server.ollama.named_models import KeepAlive, loaded_or_unloaded, own_name, seconds_of
from mlxr.server.ollama.options import Options, context_of
from mlxr.server.openai.logprobs import chat_token, chat_token_text
from mlxr.server.pool.loaded_model import LoadedModel
from mlxr.server.request_record import with_warnings
from mlxr.server.sse import Stream, unless_gone
from mlxr.server.state import ServerState

NEVER = "9999-12-31T23:59:59Z"
"""What is written for a time that never comes."""


@dataclass
class PartialAnswer:
    """A part of an answer, or all of it."""

    text: str = ""
    thinking: str = ""
    calls: list[OllamaCall] = field(default_factory=list)
    logprobs: list[ChatToken] = field(default_factory=list)

    @property
    def is_text(self) -> bool:
        """Whether it is text alone, and perhaps its log probabilities, as nearly all parts are."""
        return not (self.thinking or self.calls)

    def add(self, more: "PartialAnswer") -> None:
        """Adds what follows."""
        self.text += more.text
        self.thinking += more.thinking
        self.calls += more.calls
        self.logprobs += more.logprobs


@dataclass(frozen=True)
class Records:
    """The records of a path.

    Attributes:
        fields: those of a part of an answer, or of all of it.
        end: the last record, or the only one.
        more: another record of a stream.
        text_line: writes a line of text alone, of the JSON of the model, the time and the text.
        token_line: the same with log probabilities.
    """

    fields: Callable[[PartialAnswer], dict[str, Any]]
    end: Callable[..., OllamaEnd]
    more: Callable[..., OllamaMore]
    text_line: Form
    token_line: Form


@dataclass(frozen=True)
class Ask:
    """What is asked.

    Attributes:
        state: of the server.
        model: as the client names it.
        keep_alive: how long the model stays loaded afterwards.
        options: of the request.
        pieces: begins the answer.
        records: of the path.
    """

    state: ServerState
    model: str
    keep_alive: KeepAlive
    options: Options | None
    pieces: Callable[[LoadedModel], AsyncGenerator[AnswerEvent]]
    records: Records

    def fields(self, part: PartialAnswer) -> dict[str, Any]:
        """The fields of a record."""
        logprobs = {"logprobs": part.logprobs} if part.logprobs else {}
        return {"model": self.model, "created_at": written(), **self.records.fields(part), **logprobs}


async def answered(request: Request, ask: Ask, stream: bool | None) -> Response:
    """The response: a stream, unless the client wants none."""
    name = own_name(ask.state.pool, ask.model)
    seconds_of(ask.keep_alive)
    if stream is not False:
        return Stream(
            _lines(ask, name),
            failed=lambda error: _line(ollama_body(error)),
            alive_seconds=ask.state.settings.alive_seconds,
            media_type="application/x-ndjson",
            alive=None,
        )
    return JsonAnswer(await unless_gone(request, _whole(ask, name)))


async def loaded_or_not(ask: Ask) -> Response:
    """The response to a request without a prompt: it loads the model, or unloads it if `keep_alive` is 0."""
    reason = await loaded_or_unloaded(ask.state.pool, ask.model, ask.keep_alive, context=context_of(ask.options))
    record = ask.records.end(**ask.fields(PartialAnswer()), done=True, done_reason=reason)
    return JsonAnswer(with_warnings(record))


async def _whole(ask: Ask, name: str) -> OllamaEnd:
    whole, times = PartialAnswer(), _Times()
    async for part in _parts(ask, name, times):
        whole.add(part)
    return with_warnings(ask.records.end(**ask.fields(whole), **times.numbers()))


async def _lines(ask: Ask, name: str) -> AsyncGenerator[bytes]:
    times, is_first, model = _Times(), True, quoted(ask.model)
    async for part in _parts(ask, name, times):
        if part.is_text and not is_first:
            yield _text_line(ask.records, part, model, quoted(written())).encode()
            continue
        record = ask.records.more(**ask.fields(part), done=False)
        yield _line(with_warnings(record) if is_first else record)
        is_first = False
    end = ask.records.end(**ask.fields(PartialAnswer()), **times.numbers())
    yield _line(with_warnings(end) if is_first else end)


def _text_line(records: Records, part: PartialAnswer, model: str, time: str) -> str:
    if not part.logprobs:
        return records.text_line(model, time, quoted(part.text))
    logprobs = ",".join(map(chat_token_text, part.logprobs))
    return records.token_line(model, time, quoted(part.text), f"[{logprobs}]")


class _Times:
    """When an answer was asked for, its model was loaded, its first token came, and its last."""

    def __init__(self) -> None:
        self.asked = self.loaded = self.first = self.last = time.perf_counter_ns()
        self.piece: AnswerEvent | None = None

    def numbers(self) -> dict[str, Any]:
        """The fields of the last record; durations are in nanoseconds."""
        assert self.piece is not None and self.piece.event.completion is not None, "the answer has ended"
        completion = self.piece.event.completion
        return {
            "done": True,
            "done_reason": "stop" if completion.finish_reason == "stop" else "length",
            "total_duration": self.last - self.asked,
            "load_duration": self.loaded - self.asked,
            "prompt_eval_count": completion.prompt_tokens,
            "prompt_eval_duration": self.first - self.loaded,
            "eval_count": len(completion.token_ids),
            "eval_duration": self.last - self.first,
        }


async def _parts(ask: Ask, name: str, times: _Times) -> AsyncGenerator[PartialAnswer]:
    """The parts that have something in them."""
    blocks = Blocks()
    context = context_of(ask.options)
    async with ask.state.pool.use(name, seconds_of(ask.keep_alive), context=context) as model:
        times.loaded = time.perf_counter_ns()
        async with aclosing(ask.pieces(model)) as pieces:
            async for piece in pieces:
                times.last = time.perf_counter_ns()
                if times.piece is None:
                    times.first = times.last
                times.piece = piece
                changes = list(blocks.add(piece.deltas))
                if piece.event.finish_reason is not None:
                    changes += blocks.end()
                part = _part(blocks, changes)
                if piece.event.logprob is not None:
                    part.logprobs = [chat_token(model.engine.model.tokenizer, piece.event.logprob)]
                if part != PartialAnswer():
                    yield part


def _part(blocks: Blocks, changes: list[Change]) -> PartialAnswer:
    part = PartialAnswer()
    for change in changes:
        if change.kind == "grow" and change.block.kind == "text":
            part.text += change.text
        elif change.kind == "grow" and change.block.kind == "reasoning":
            part.thinking += change.text
        elif change.kind == "end" and change.block.kind == "call":
            index = sum(block.kind == "call" for block in blocks.all[: change.block.index])
            function = OllamaFunction(index=index, name=change.block.name, arguments=arguments_of(change.block))
            part.calls.append(OllamaCall(id=change.block.call_id, function=function))
    return part


def _line(record: Told) -> bytes:
    return f"{json_text(record)}\n".encode()


def written(seconds: float | None = None) -> str:
    """A time in UTC.

    Args:
        seconds: since 1970; None: now.
    """
    time = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return time.isoformat().replace("+00:00", "Z")

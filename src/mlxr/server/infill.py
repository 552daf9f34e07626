"""/infill, in the form of llama.cpp's server: code between a prefix and a suffix, as editors ask for it.

Prefix, suffix and other files that are too long are cut where they are furthest away, and `truncated` says so. The
files stand before the prefix, after the token that begins a text, where llama.cpp puts that token after them.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from mlxr.runtime.engine.completion import Completion, Event
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.tokenizer.infill import Gap, infill_prompt
from mlxr.server.documents.answers import Told, answers
from mlxr.server.documents.infill_answers import Infill, InfillPiece, InfillTimings
from mlxr.server.documents.json_form import JsonAnswer, json_text
from mlxr.server.fields import ApiModel, WithoutEffect
from mlxr.server.large_body_route import LargeBodyRoute
from mlxr.server.openai.chat import error_event
from mlxr.server.openai.sampling_fields import LoraScale, Stop, all_of, note_adapters, seed_of, share_of
from mlxr.server.pool.loaded_model import LoadedModel
from mlxr.server.request_record import with_warnings
from mlxr.server.sse import Stream, unless_gone
from mlxr.server.state import ServerState

router = APIRouter(route_class=LargeBodyRoute)
_MOST_FILES = 1024
_PART_FOR_ANSWER = 8
"""Of the context, for an answer of any length: one part of so many is left for it."""


class ExtraFile(ApiModel):
    """Another file, or a part of one."""

    text: str
    filename: str | None = None
    time: WithoutEffect = None


class InfillRequest(ApiModel):
    """The body of /infill."""

    model: str | None = None
    input_prefix: str
    input_suffix: str
    input_extra: list[ExtraFile] | None = Field(None, max_length=_MOST_FILES)
    prompt: str | None = None
    """More of the prefix: the line of the cursor, up to it."""
    n_predict: int | None = Field(None, ge=-1)
    n_indent: int | None = Field(None, ge=0)
    t_max_predict_ms: float | None = None
    stream: bool | None = None
    stop: Stop = None
    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    ignore_eos: bool | None = None
    lora: list[LoraScale] | None = Field(None, max_length=256)
    return_tokens: bool | None = None
    response_fields: list[str] | None = Field(None, max_length=64)
    cache_prompt: WithoutEffect = None
    id_slot: WithoutEffect = None
    n_keep: WithoutEffect = None
    samplers: WithoutEffect = None
    t_max_prompt_ms: WithoutEffect = None

    @property
    def gap(self) -> Gap:
        """What is asked."""
        files = [(extra.filename or "tmp", extra.text) for extra in self.input_extra or ()]
        return Gap(self.input_prefix + (self.prompt or ""), self.input_suffix, files)

    @property
    def only_reads(self) -> bool:
        """Whether the prompt is only read, so that the next request finds it in the prefix cache."""
        return self.n_predict == 0

    def sampling(self) -> Sampling:
        """The engine's options; those that the request does not name are the model's own.

        Raises:
            RequestError: a value outside its range.
        """
        given: dict[str, Any] = {
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop,
            "seed": seed_of(None if self.seed == -1 else self.seed),
            "top_k": all_of(self.top_k),
            "top_p": share_of(self.top_p),
            "repetition_penalty": self.repeat_penalty,
        }
        same = ("temperature", "min_p", "typical_p", "presence_penalty", "frequency_penalty", "ignore_eos")
        for name in (*same, "dry_multiplier", "dry_base", "dry_allowed_length"):
            given[name] = getattr(self, name)
        most = None if self.n_predict in (None, -1) else max(1, self.n_predict or 0)
        options = {name: value for name, value in given.items() if value is not None}
        return Sampling.of_model(**options, max_tokens=most)


@router.post("/infill", tags=["llama.cpp"], responses=answers(Infill, "text/event-stream"))
async def infill(body: InfillRequest, request: Request) -> Response:
    """Writes the text between a prefix and a suffix."""
    state = ServerState.of(request)
    name = state.only_name() if body.model is None else body.model
    state.pool.find(name)
    answer = InfillAnswer(body, name)
    note_adapters(body.lora)
    if body.stream:
        return Stream(
            _stream(state, answer),
            failed=error_event,
            alive_seconds=state.settings.alive_seconds,
            alive=lambda: state.alive(name),
        )
    return JsonAnswer(await unless_gone(request, _whole(state, answer)))


class InfillAnswer:
    """One answer as it grows."""

    def __init__(self, body: InfillRequest, model: str) -> None:
        self.body, self._model, self._sampling = body, model, body.sampling()
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._prompt_tokens = 0
        self._is_cut = False
        self._indent: int | None = 0
        """White space at the beginning of the line so far; None: the line has begun."""
        self._has_line = False
        self._completion: Completion | None = None
        self._begun = self._first = self._last = 0.0
        self._cached = 0

    async def events(self, model: LoadedModel) -> AsyncGenerator[Event]:
        """The answer's events up to its end."""
        tokenizer = model.engine.model.require_tokenizer()
        wanted = self._sampling.max_tokens or model.limit.tokens
        room = model.limit.tokens - min(wanted, max(1, model.limit.tokens // _PART_FOR_ANSWER))
        prompt = await asyncio.to_thread(infill_prompt, tokenizer, self.body.gap, room)
        self._prompt_tokens, self._is_cut = len(prompt.ids), prompt.is_cut
        self._begun = time.perf_counter()
        async with aclosing(model.engine.generate(prompt.ids, self._sampling.ending_also(prompt.ends))) as events:
            async for event in events:
                text, is_over = self._up_to_end(event)
                self._add(event)
                if not self.body.only_reads:
                    self._text.append(text)
                    yield event if text == event.text else Event(event.index, event.token_id, text)
                if is_over:
                    return

    def _add(self, event: Event) -> None:
        self._first = self._first or event.time or time.perf_counter()
        self._last = event.time or time.perf_counter()
        self._cached = event.cached_tokens
        if event.token_id is not None:
            self._tokens.append(event.token_id)
        self._completion = event.completion

    def _up_to_end(self, event: Event) -> tuple[str, bool]:
        """An event's text, up to where `n_indent` and `t_max_predict_ms` end the answer, and whether they do."""
        most, least = self.body.t_max_predict_ms, self.body.n_indent or 0
        if most and self._has_line and (time.perf_counter() - self._first) * 1e3 > most:
            return event.text, True
        for place, character in enumerate(event.text):
            if character == "\n":
                self._indent, self._has_line = 0, True
            elif self._indent is not None and character in " \t":
                self._indent += 1
            elif self._indent is not None:
                if self._has_line and self._indent < least:
                    return event.text[: event.text.rfind("\n", 0, place) + 1], True
                self._indent = None
        return event.text, False

    def piece(self, event: Event) -> InfillPiece:
        """The record of an event."""
        return InfillPiece(
            index=0,
            content=event.text,
            tokens=[] if event.token_id is None else [event.token_id],
            stop=False,
            tokens_predicted=len(self._tokens),
            tokens_evaluated=self._prompt_tokens,
        )

    def record(self, *, is_streamed: bool) -> "Told | dict[str, Any]":
        """The record of the whole answer, or those fields of it that are asked for."""
        text = "".join(self._text)
        done, predicted = self._completion, 0 if self.body.only_reads else len(self._tokens)
        word = (done.stop_text if done else None) or ""
        has_ended = done is not None and done.finish_reason == "stop"
        record = with_warnings(
            Infill(
                index=0,
                content="" if is_streamed else text,
                tokens=self._tokens[:predicted] if self.body.return_tokens and not is_streamed else [],
                stop=True,
                model=self._model,
                tokens_predicted=predicted,
                tokens_evaluated=self._prompt_tokens,
                has_new_line=self._has_line,
                truncated=self._is_cut,
                stop_type="word" if word else "eos" if has_ended else "limit",
                stopping_word=word,
                tokens_cached=self._prompt_tokens + predicted,
                timings=self._timings(predicted),
            )
        )
        return record if self.body.response_fields is None else _chosen(record, self.body.response_fields)

    def _timings(self, predicted: int) -> InfillTimings:
        read = self._prompt_tokens - self._cached
        prompt_ms, predicted_ms = (self._first - self._begun) * 1e3, (self._last - self._first) * 1e3
        return InfillTimings(
            cache_n=self._cached,
            prompt_n=read,
            prompt_ms=prompt_ms,
            prompt_per_token_ms=prompt_ms / max(1, read),
            prompt_per_second=_rate(read, prompt_ms),
            predicted_n=predicted,
            predicted_ms=predicted_ms,
            predicted_per_token_ms=predicted_ms / max(1, predicted),
            predicted_per_second=_rate(predicted, predicted_ms),
        )


def _rate(tokens: int, milliseconds: float) -> float:
    return tokens / milliseconds * 1e3 if milliseconds > 0 else 0.0


def _chosen(record: Infill, names: list[str]) -> dict[str, Any]:
    """Fields of a record; `timings/prompt_n` is one in another, told by that name."""
    told: dict[str, Any] = {}
    for name in names:
        value: object = record
        for part in name.split("/"):
            value = value.fields().get(part) if isinstance(value, Told) else None
        if value is not None:
            told[name] = value
    return told


async def _whole(state: ServerState, answer: InfillAnswer) -> "Told | dict[str, Any]":
    async with state.use(answer.body.model) as model, aclosing(answer.events(model)) as events:
        async for _ in events:
            pass
    return answer.record(is_streamed=False)


async def _stream(state: ServerState, answer: InfillAnswer) -> AsyncGenerator[bytes]:
    async with state.use(answer.body.model) as model, aclosing(answer.events(model)) as events:
        async for event in events:
            if event.text or event.token_id is not None:
                yield _line(answer.piece(event))
    yield _line(answer.record(is_streamed=True))


def _line(record: object) -> bytes:
    return f"data: {json_text(record)}\n\n".encode()

"""/v1/completions: texts that are continued, or filled in before a suffix, and log probabilities of given texts."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii as quoted
from typing import Annotated, ClassVar, cast

from fastapi import APIRouter, Request
from pydantic import Discriminator, Field, Tag
from starlette.responses import Response

from mlxr.runtime.engine.completion import Completion, Event, TokenLogprob, Usage
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.engine.too_long import check_length
from mlxr.runtime.tokenizer.infill import Gap, infill_prompt
from mlxr.runtime.tokenizer.tokenizer import Tokenizer
from mlxr.server.documents.answers import answers
from mlxr.server.documents.json_form import JsonAnswer, json_text
from mlxr.server.documents.openai_answers import TextChoice, TextCompletion, TextReason
from mlxr.server.documents.openai_answers import Usage as UsageTold
from mlxr.server.documents.openai_chunks import TextChunk, TextChunkChoice
from mlxr.server.errors import bad_field
from mlxr.server.large_body_route import LargeBodyRoute
from mlxr.server.merged import merged
from mlxr.server.openai.chat import error_event, new_id, plain_reason, usage
from mlxr.server.openai.chunk_writer import DONE, FINGERPRINT, ChunkForms, ChunkWriter, RunningUsage
from mlxr.server.openai.logprobs import completion_logprobs
from mlxr.server.openai.sampling_fields import ResponseFormat, SamplingFields, Terms, response_schema, sampling_of
from mlxr.server.pool.loaded_model import LoadedModel
from mlxr.server.request_record import with_warnings
from mlxr.server.sse import Stream, unless_gone
from mlxr.server.state import ServerState

router = APIRouter(route_class=LargeBodyRoute)
_DEFAULT_TOKENS = 16
_MOST_LOGPROBS = 20


def _branch(prompt: object) -> str:
    """Which form a prompt has, by its first item: errors tell of that form."""
    if not isinstance(prompt, list):
        return "str"
    first = prompt[0] if prompt else ""
    return "[texts]" if isinstance(first, str) else "[lists]" if isinstance(first, list) else "[ids]"


_Prompt = Annotated[
    Annotated[str, Tag("str")]
    | Annotated[list[str], Tag("[texts]")]
    | Annotated[list[int], Tag("[ids]")]
    | Annotated[list[list[int]], Tag("[lists]")],
    Discriminator(_branch),
]


class CompletionRequest(SamplingFields):
    """The body of /v1/completions."""

    refused: ClassVar[dict[str, str]] = {"prompt_embeds": "give text or token ids"}

    prompt: _Prompt
    suffix: str | None = None
    max_tokens: int | None = Field(None, ge=0)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=_MOST_LOGPROBS)
    response_format: ResponseFormat | None = None
    add_special_tokens: bool | None = None


@dataclass(frozen=True)
class _Job:
    """What is asked."""

    prompts: Sequence[str | list[int]]
    sampling: Sampling
    echo: bool
    most: int
    logprobs: int | None
    terms: Terms
    adds_special: bool
    suffix: str
    """What comes after the answer; empty: the answer continues the prompt."""

    @property
    def num_answers(self) -> int:
        return len(self.prompts) * self.sampling.n


@dataclass(frozen=True)
class _Encoded(_Job):
    """With the prompts' token ids, and tokens that end the answers besides those that end any."""

    ids: list[list[int]]
    ends: tuple[int, ...]


@dataclass
class _Text:
    """One answer as it grows."""

    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reason: TextReason = "length"
    completion: Completion | None = None

    def add(self, event: Event) -> None:
        self.text.append(event.text)
        if event.logprob is not None:
            self.logprobs.append(event.logprob)
        if event.finish_reason:
            self.reason, self.completion = plain_reason(event.finish_reason), event.completion


@router.post("/v1/completions", tags=["OpenAI"], responses=answers(TextCompletion, "text/event-stream"))
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Continues texts."""
    state = ServerState.of(request)
    state.pool.find(body.model)
    job = _job(body)
    state.settings.check_answers(job.num_answers)
    if body.stream:
        return Stream(
            _stream(state, body, job),
            failed=error_event,
            alive_seconds=state.settings.alive_seconds,
            alive=lambda: state.alive(body.model),
        )
    return JsonAnswer(await unless_gone(request, _whole(state, body, job)))


def _job(body: CompletionRequest) -> _Job:
    """What is asked, before any model is loaded for it.

    Raises:
        ApiError: fields that contradict each other.
        RequestError: a value outside its range.
    """
    if body.stream and body.echo and body.logprobs is not None:
        raise bad_field("echo", "echo with logprobs cannot be streamed: leave stream out")
    if body.suffix and body.echo:
        raise bad_field("echo", "suffix is given, so the answer stands between two texts: leave echo out")
    if body.max_tokens == 0 and not body.echo:
        raise bad_field("max_tokens", "max_tokens is 0, which needs echo: ask for 1 token or more, or set echo")

    most = _DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
    sampling = sampling_of(
        body,
        max_tokens=max(1, most),  # the step that tells of the prompt's last token samples one in any case
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
        json_schema=response_schema(body.response_format),
    )
    special = body.add_special_tokens is not False
    prompts = _prompts(body.prompt)
    if body.suffix and not isinstance(prompts[0], str):
        raise bad_field("suffix", "suffix is given, and prompt has token ids: give the prompt as text")
    return _Job(
        prompts, sampling, bool(body.echo), most, body.logprobs, body.terms(), special, suffix=body.suffix or ""
    )


def _prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> Sequence[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise bad_field("prompt", "prompt is an empty list: give at least one prompt")
    if isinstance(prompt[0], int):
        return [prompt]
    return cast(Sequence[str | list[int]], prompt)


async def _encoded(model: LoadedModel, job: _Job) -> _Encoded:
    """Long texts take long: a thread encodes them, and other requests go on."""
    encoded = await asyncio.to_thread(lambda: [_ids(model, job, prompt) for prompt in job.prompts])
    return _Encoded(**vars(job), ids=[ids for ids, _ in encoded], ends=encoded[0][1])


def _ids(model: LoadedModel, job: _Job, prompt: str | list[int]) -> tuple[list[int], tuple[int, ...]]:
    if isinstance(prompt, str):
        tokenizer = model.engine.model.require_tokenizer()
        check_length(prompt, tokenizer, model.limit)
        if job.suffix:
            check_length(job.suffix, tokenizer, model.limit, fix="shorten the suffix")
            ids, ends, _ = infill_prompt(tokenizer, Gap(prompt, job.suffix))
            return ids, ends
        ids = tokenizer.encode(prompt, add_special=job.adds_special, parse_special=True)
        if ids:
            return ids, ()
        if tokenizer.bos_id is None:
            raise bad_field("prompt", "prompt is empty, and this model has no token that begins a text: give some text")
        return [tokenizer.bos_id], ()
    return model.engine.model.encode(prompt), ()


def _events(model: LoadedModel, job: _Encoded) -> Sequence[AsyncGenerator[Event]]:
    sampling = job.sampling.ending_also(job.ends)
    return [model.engine.generate(prompt, sampling, **job.terms) for prompt in job.ids]


async def _whole(state: ServerState, body: CompletionRequest, asked: _Job) -> TextCompletion:
    created = int(time.time())
    async with state.pool.use(body.model) as model:
        job = await _encoded(model, asked)
        texts = [_Text() for _ in range(job.num_answers)]
        async with aclosing(merged(_events(model, job))) as events:
            async for number, event in events:
                texts[number * job.sampling.n + event.index].add(event)
        return with_warnings(
            TextCompletion(
                id=new_id("cmpl"),
                object="text_completion",
                created=created,
                model=body.model,
                choices=[_choice(i, model, job, text) for i, text in enumerate(texts)],
                usage=_usage(job, texts),
                system_fingerprint=FINGERPRINT,
            )
        )


def _choice(index: int, model: LoadedModel, job: _Encoded, text: _Text) -> TextChoice:
    tokenizer, prompt = model.engine.model.tokenizer, job.ids[index // job.sampling.n]
    assert text.completion is not None, "its last event has come"
    written = "".join(text.text) if job.most else ""
    answer_ids = list(text.completion.token_ids) if job.most else []
    logprobs: list[TokenLogprob | None] = [*text.logprobs] if job.most else []
    before = ""
    if job.echo:
        before = _echoed(job, tokenizer, index)
        answer_ids = [*prompt, *answer_ids]
        logprobs = [None, *text.completion.prompt_logprobs, *logprobs]
    told = None
    if job.logprobs is not None:
        told = completion_logprobs(tokenizer, logprobs, answer_ids[: len(logprobs)], 0)
    return TextChoice(text=before + written, index=index, logprobs=told, finish_reason=text.reason)


def _echoed(job: _Encoded, tokenizer: Tokenizer | None, index: int) -> str:
    """The prompt of an answer, as it was given if it was text: decoding leaves out control tokens."""
    number = index // job.sampling.n
    given = job.prompts[number]
    if isinstance(given, str):
        return given
    return tokenizer.decode(job.ids[number]) if tokenizer else ""


def _usage(job: _Job, texts: Sequence[_Text]) -> UsageTold:
    """Each prompt counts once, however many answers it has."""
    used = [text.completion.usage for text in texts[:: job.sampling.n] if text.completion is not None]
    answered = sum(len(text.completion.token_ids) for text in texts if text.completion is not None) if job.most else 0
    return usage([Usage(sum(u.prompt_tokens for u in used), sum(u.cached_tokens for u in used), answered)])


async def _stream(state: ServerState, body: CompletionRequest, asked: _Job) -> AsyncGenerator[bytes]:
    writer = ChunkWriter(_CHUNKS, new_id("cmpl"), body.model, body.wants_usage)
    chunk = writer.chunk
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(state.pool.use(body.model))
        job = await _encoded(model, asked)
        tokenizer = model.engine.model.tokenizer
        texts = [_Text() for _ in range(job.num_answers)]
        lengths = [0] * len(texts)
        running = None
        if body.wants_running_usage and job.most:
            running = RunningUsage([len(prompt) for prompt in job.ids for _ in range(job.sampling.n)])

        if job.echo:
            for index in range(len(texts)):
                yield chunk(index, quoted(_echoed(job, tokenizer, index)))
        events = await stack.enter_async_context(aclosing(merged(_events(model, job))))
        async for number, event in events:
            index = number * job.sampling.n + event.index
            texts[index].add(event)
            if running is not None:
                writer.set_usage(running.count(index, event))
            logprobs = "null"
            if job.logprobs is not None and event.logprob is not None and event.token_id is not None:
                told = completion_logprobs(tokenizer, [event.logprob], [event.token_id], lengths[index])
                logprobs = json_text(told)
                lengths[index] += len(told.tokens[0])
            reason = quoted(plain_reason(event.finish_reason)) if event.finish_reason else "null"
            if job.most == 0:
                if event.finish_reason:
                    yield chunk(index, quoted(""), reason=reason)
            elif event.text or event.finish_reason or logprobs != "null":
                yield chunk(index, quoted(event.text), logprobs, reason)
        if body.wants_usage:
            yield writer.last(json_text(_usage(job, texts)))
    yield DONE


_CHUNKS = ChunkForms(
    TextChunk(
        id="",
        object="text_completion",
        created=0,
        model="",
        system_fingerprint=FINGERPRINT,
        choices=[TextChunkChoice(index=0, text="", logprobs=None, finish_reason=None)],
    ),
    "text",
)

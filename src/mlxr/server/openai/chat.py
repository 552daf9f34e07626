"""/v1/chat/completions."""

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from json.encoder import encode_basestring_ascii as quoted

from fastapi import APIRouter, Request
from starlette.responses import Response

from mlxr.runtime.engine.completion import Event, FinishReason, TokenLogprob, Usage
from mlxr.server.chat.answer import AnswerEvent, answer
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.delta import ContentDelta, Delta, ReasoningDelta, ToolArguments, ToolStart
from mlxr.server.documents.answers import answers
from mlxr.server.documents.json_form import JsonAnswer, json_form, json_text
from mlxr.server.documents.openai_answers import (
    ChatChoice,
    ChatCompletion,
    ChatMessage,
    ChatReason,
    CompletionDetails,
    PromptDetails,
    TextReason,
)
from mlxr.server.documents.openai_answers import Usage as UsageTold
from mlxr.server.documents.openai_chunks import CallDelta, ChatChunk, ChatChunkChoice, ChatDelta, FunctionDelta
from mlxr.server.errors import ApiError, openai_body
from mlxr.server.large_body_route import LargeBodyRoute, made
from mlxr.server.openai.chat_request import ChatRequest, job_of
from mlxr.server.openai.chat_tools import NO_DELTA, CustomDeltas, kit_of, whole_call
from mlxr.server.openai.chunk_writer import DONE, FINGERPRINT, ChunkForms, ChunkWriter, RunningUsage
from mlxr.server.openai.client_tool import ToolKit
from mlxr.server.openai.logprobs import chat_logprobs, chat_logprobs_text
from mlxr.server.pool.loaded_model import LoadedModel
from mlxr.server.request_record import with_warnings
from mlxr.server.sse import Stream, unless_gone
from mlxr.server.state import ServerState

router = APIRouter(route_class=LargeBodyRoute)


@router.post("/v1/chat/completions", tags=["OpenAI"], responses=answers(ChatCompletion, "text/event-stream"))
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Answers a conversation."""
    state = ServerState.of(request)
    state.pool.find(body.model)
    job = await made(request, lambda: job_of(body))
    state.settings.check_answers(job.sampling.n)
    if body.stream:
        pieces = _stream(state, body, job)
        return Stream(
            pieces,
            failed=error_event,
            alive_seconds=state.settings.alive_seconds,
            alive=lambda: state.alive(body.model),
        )
    return JsonAnswer(await unless_gone(request, _whole(state, body, job)))


class _Answer:
    """One answer as it grows."""

    def __init__(self, kit: ToolKit) -> None:
        self._kit = kit
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[tuple[str, str, list[str]]] = []
        self.logprobs: list[TokenLogprob] = []
        self.reasoning_tokens = 0
        self.finish_reason: ChatReason = "stop"
        self.usage = Usage(0, 0, 0)

    def add(self, piece: AnswerEvent) -> None:
        for delta in piece.deltas:
            match delta:
                case ContentDelta(text):
                    self.content.append(text)
                case ReasoningDelta(text):
                    self.reasoning.append(text)
                case ToolStart(_, call_id, name):
                    self.calls.append((call_id, name, []))
                case ToolArguments(index, text):
                    self.calls[index][2].append(text)
        self.reasoning_tokens += is_reasoning(piece.deltas)
        if piece.event.logprob is not None:
            self.logprobs.append(piece.event.logprob)
        if piece.event.finish_reason:
            self.finish_reason = finish_reason(piece)
            self.usage = _usage_of(piece.event)

    def choice(self, index: int, model: LoadedModel, job: ChatJob, shows_reasoning: bool) -> ChatChoice:
        message = ChatMessage(role="assistant", content="".join(self.content), refusal=None)
        if self.reasoning and shows_reasoning:
            message.reasoning_content = "".join(self.reasoning)
        if self.calls:
            message.tool_calls = [
                whole_call(self._kit, call_id, name, "".join(arguments)) for call_id, name, arguments in self.calls
            ]
            message.content = message.content or None
        wanted = job.sampling.logprobs is not None
        logprobs = chat_logprobs(model.engine.model.tokenizer, self.logprobs) if wanted else None
        return ChatChoice(index=index, message=message, logprobs=logprobs, finish_reason=self.finish_reason)


async def _whole(state: ServerState, body: ChatRequest, job: ChatJob) -> ChatCompletion:
    created, answers = int(time.time()), [_Answer(kit_of(body.tools)) for _ in range(job.sampling.n)]
    async with state.pool.use(body.model) as model:
        async with aclosing(answer(model, job, **body.terms())) as pieces:
            async for piece in pieces:
                answers[piece.index].add(piece)
        return with_warnings(
            ChatCompletion(
                id=new_id("chatcmpl"),
                object="chat.completion",
                created=created,
                model=body.model,
                choices=[each.choice(i, model, job, body.shows_reasoning) for i, each in enumerate(answers)],
                usage=usage([each.usage for each in answers], sum(each.reasoning_tokens for each in answers)),
                system_fingerprint=FINGERPRINT,
            )
        )


async def _stream(state: ServerState, body: ChatRequest, job: ChatJob) -> AsyncGenerator[bytes]:
    usages: list[Usage] = []
    begun: set[int] = set()
    reasoning_tokens = 0
    writer = ChunkWriter(_CHUNKS, new_id("chatcmpl"), body.model, body.wants_usage)
    chunk = writer.chunk
    wants_logprobs = job.sampling.logprobs is not None
    kit = kit_of(body.tools)
    customs = [CustomDeltas(kit) for _ in range(job.sampling.n)] if kit.has_custom else []

    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(state.pool.use(body.model))
        prompt, running = None, None
        if body.wants_running_usage:
            prompt = await model.format.prompt(job)
            running = RunningUsage([len(prompt)] * job.sampling.n)
        pieces = await stack.enter_async_context(aclosing(answer(model, job, prompt=prompt, **body.terms())))
        async for piece in pieces:
            index, event = piece.index, piece.event
            if running is not None:
                writer.set_usage(running.count(index, event))
            if index not in begun:
                begun.add(index)
                yield chunk(index, _BEGINNING)
            logprobs = "null"
            if wants_logprobs and event.logprob is not None:
                logprobs = chat_logprobs_text(model.engine.model.tokenizer, event.logprob)
            deltas = piece.deltas
            if not body.shows_reasoning:
                deltas = [delta for delta in deltas if not isinstance(delta, ReasoningDelta)]
            if not deltas and logprobs != "null":
                yield chunk(index, _NOTHING, logprobs)
            for delta in deltas:
                own = customs[index].shown(delta) if customs else None
                yield chunk(index, _delta(delta) if own is None else own, logprobs)
                logprobs = "null"
            reasoning_tokens += is_reasoning(piece.deltas)
            if event.finish_reason:
                for rest in customs[index].rest() if customs else ():
                    yield chunk(index, rest)
                usages.append(_usage_of(event))
                yield chunk(index, NO_DELTA, reason=quoted(finish_reason(piece)))
    if body.wants_usage:
        yield writer.last(json_text(usage(usages, reasoning_tokens)))
    yield DONE


_CHUNKS = ChunkForms(
    ChatChunk(
        id="",
        object="chat.completion.chunk",
        created=0,
        model="",
        system_fingerprint=FINGERPRINT,
        choices=[ChatChunkChoice(index=0, delta=ChatDelta(), logprobs=None, finish_reason=None)],
    ),
    "delta",
)
_BEGINNING = json_form(ChatDelta(role="assistant", content="", refusal=None))()
_NOTHING = json_form(ChatDelta(content=""))()
_CONTENT = json_form(ChatDelta(content=""), "content")
_REASONING = json_form(ChatDelta(reasoning_content=""), "reasoning_content")
_CALL_START = json_form(
    ChatDelta(
        tool_calls=[CallDelta(index=0, id="", type="function", function=FunctionDelta(name="", arguments=""))],
    ),
    "index",
    "id",
    "name",
)
_CALL_ARGUMENTS = json_form(
    ChatDelta(tool_calls=[CallDelta(index=0, function=FunctionDelta(arguments=""))]), "index", "arguments"
)


def _delta(delta: Delta) -> str:
    if isinstance(delta, ContentDelta):  # nearly all; a pattern takes longer
        return _CONTENT(quoted(delta.text))
    match delta:
        case ReasoningDelta(text):
            return _REASONING(quoted(text))
        case ToolStart(index, call_id, name):
            return _CALL_START(index, quoted(call_id), quoted(name))
        case ToolArguments(index, text):
            return _CALL_ARGUMENTS(index, quoted(text))


def is_reasoning(deltas: Sequence[Delta]) -> bool:
    """Whether a token is one of reasoning."""
    return any(isinstance(delta, ReasoningDelta) for delta in deltas)


def finish_reason(piece: AnswerEvent) -> ChatReason:
    """OpenAI's reason for the end of an answer."""
    if piece.has_tool_calls and piece.event.finish_reason == "stop":
        return "tool_calls"
    return plain_reason(piece.event.finish_reason)


def plain_reason(reason: FinishReason | None) -> TextReason:
    """OpenAI's reason for the end of a text: where it is cut short, `length`."""
    return "stop" if reason == "stop" else "length"


def _usage_of(event: Event) -> Usage:
    assert event.completion is not None, "the last event of an answer has it"
    return event.completion.usage


def usage(answers: Sequence[Usage], reasoning_tokens: int = 0) -> UsageTold:
    """Tokens of a request whose answers have one prompt, which counts once."""
    prompt = answers[0].prompt_tokens if answers else 0
    completion = sum(each.completion_tokens for each in answers)
    return UsageTold(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptDetails(cached_tokens=answers[0].cached_tokens if answers else 0),
        completion_tokens_details=CompletionDetails(reasoning_tokens=reasoning_tokens),
    )


def new_id(kind: str) -> str:
    """A name for an answer."""
    return f"{kind}-{uuid.uuid4().hex}"


def error_event(error: ApiError) -> bytes:
    """The event of an error that ends a stream."""
    return f"data: {json_text(openai_body(error))}\n\n".encode()

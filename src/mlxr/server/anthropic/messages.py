"""/v1/messages and /v1/messages/count_tokens."""

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from json.encoder import encode_basestring_ascii as quoted

from fastapi import APIRouter, Request
from starlette.responses import Response

from mlxr.runtime.engine.completion import Completion
from mlxr.server.anthropic.conversation import hides_thinking, job_of
from mlxr.server.anthropic.messages_request import CountTokensRequest, MessagesRequest
from mlxr.server.blocks import Block, BlockKind, Blocks, Change, arguments_of
from mlxr.server.chat.answer import AnswerEvent, answer
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.delta import Delta
from mlxr.server.documents.answers import answers
from mlxr.server.documents.anthropic_answers import (
    AnswerDetails,
    BlockDelta,
    BlockStart,
    BlockStop,
    InputDelta,
    MessageDelta,
    MessageEnd,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    SignatureDelta,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    TokenCount,
    ToolUseBlock,
    WholeMessage,
)
from mlxr.server.documents.anthropic_answers import Block as BlockTold
from mlxr.server.documents.json_form import Form, JsonAnswer, json_text
from mlxr.server.documents.named_events import event_form, event_text
from mlxr.server.errors import anthropic_body
from mlxr.server.large_body_route import LargeBodyRoute, made
from mlxr.server.request_record import with_warnings
from mlxr.server.sse import Stream, unless_gone
from mlxr.server.state import ServerState

router = APIRouter(route_class=LargeBodyRoute)


@router.post("/v1/messages", tags=["Anthropic"], responses=answers(WholeMessage, "text/event-stream"))
async def messages(body: MessagesRequest, request: Request) -> Response:
    """Answers a conversation."""
    state = ServerState.of(request)
    state.pool.find(body.model)
    job = await made(request, lambda: job_of(body))
    if body.stream:
        return Stream(
            _stream(state, body, job),
            failed=lambda error: f"event: error\ndata: {json_text(anthropic_body(error))}\n\n".encode(),
            alive_seconds=state.settings.alive_seconds,
            alive=lambda: state.alive(body.model) if state.pool.find(body.model).progress else _PING,
        )
    return JsonAnswer(await unless_gone(request, _whole(state, body, job)))


@router.post("/v1/messages/count_tokens", tags=["Anthropic"], responses=answers(TokenCount))
async def count_tokens(body: CountTokensRequest, request: Request) -> Response:
    """How many tokens a conversation has, up to where the answer begins."""
    state = ServerState.of(request)
    state.pool.find(body.model)
    job = await made(request, lambda: job_of(body))
    async with state.pool.use(body.model) as model:
        count = TokenCount(input_tokens=len(await model.format.prompt(job)))
        return JsonAnswer(with_warnings(count))


async def _whole(state: ServerState, body: MessagesRequest, job: ChatJob) -> WholeMessage:
    blocks, last = Blocks(), None
    async with state.pool.use(body.model) as model, aclosing(answer(model, job)) as pieces:
        async for piece in pieces:
            for _ in blocks.add(_wanted(body, piece)):
                pass
            last = piece
    assert last is not None, "an answer has a last event"
    hidden = hides_thinking(body)
    content = [_block(block, hidden) for block in blocks.all]
    usage = _usage(_completion(last), blocks.num_reasoning, body.max_tokens)
    return with_warnings(_message(body.model, content, usage, _end(body, last)))


async def _stream(state: ServerState, body: MessagesRequest, job: ChatJob) -> AsyncGenerator[bytes]:
    blocks, hidden, last = Blocks(), hides_thinking(body), None
    async with state.pool.use(body.model) as model:
        prompt = await model.format.prompt(job)
        async with aclosing(answer(model, job, prompt=prompt)) as pieces:
            async for piece in pieces:
                if last is None:
                    usage = _usage(Completion(len(prompt), cached_tokens=piece.event.cached_tokens), 0, 0)
                    message = with_warnings(_message(body.model, [], usage))
                    yield event_text(MessageStart(type="message_start", message=message))
                for change in blocks.add(_wanted(body, piece)):
                    yield _changed(change, hidden)
                last = piece
    assert last is not None, "an answer has a last event"
    for change in blocks.end():
        yield _changed(change, hidden)
    usage = _usage(_completion(last), blocks.num_reasoning, body.max_tokens)
    yield event_text(MessageDelta(type="message_delta", delta=_end(body, last), usage=usage))
    yield _STOP


def _changed(change: Change, hidden: bool) -> bytes:
    block = change.block
    if change.kind == "grow":  # nearly all
        if block.kind == "reasoning" and hidden:
            return b""
        return _GROW[block.kind](block.index, quoted(change.text)).encode()
    if change.kind == "begin":
        empty = _block(Block(0, block.kind, block.call_id, block.name))
        return event_text(BlockStart(type="content_block_start", index=block.index, content_block=empty))
    end = event_text(BlockStop(type="content_block_stop", index=block.index))
    if block.kind != "reasoning":
        return end
    signature = SignatureDelta(type="signature_delta", signature="")
    return event_text(BlockDelta(type="content_block_delta", index=block.index, delta=signature)) + end


def _grow(delta: TextDelta | ThinkingDelta | InputDelta, text: str) -> Form:
    return event_form(BlockDelta(type="content_block_delta", index=0, delta=delta), "index", text)


_GROW: dict[BlockKind, Form] = {
    "text": _grow(TextDelta(type="text_delta", text=""), "text"),
    "reasoning": _grow(ThinkingDelta(type="thinking_delta", thinking=""), "thinking"),
    "call": _grow(InputDelta(type="input_json_delta", partial_json=""), "partial_json"),
}
_STOP = event_text(MessageStop(type="message_stop"))
_PING = event_text(Ping(type="ping"))


def _block(block: Block, hidden: bool = False) -> BlockTold:
    if block.kind == "call":
        return ToolUseBlock(type="tool_use", id=block.call_id, name=block.name, input=arguments_of(block))
    if block.kind == "reasoning":
        return ThinkingBlock(type="thinking", thinking="" if hidden else block.text, signature="")
    return TextBlock(type="text", text=block.text)


def _message(model: str, content: list[BlockTold], usage: MessageUsage, end: MessageEnd | None = None) -> WholeMessage:
    return WholeMessage(
        id=f"msg_{uuid.uuid4().hex}",
        type="message",
        role="assistant",
        model=model,
        stop_reason=None if end is None else end.stop_reason,
        stop_sequence=None if end is None else end.stop_sequence,
        content=content,
        usage=usage,
    )


def _completion(piece: AnswerEvent) -> Completion:
    assert piece.event.completion is not None, "the last event of an answer has it"
    return piece.event.completion


def _end(body: MessagesRequest, piece: AnswerEvent) -> MessageEnd:
    if not body.max_tokens:
        return MessageEnd(stop_reason="max_tokens", stop_sequence=None)
    stop_text = _completion(piece).stop_text
    return MessageEnd(stop_reason=_stop_reason(piece, stop_text), stop_sequence=stop_text)


def _stop_reason(piece: AnswerEvent, stop_text: str | None) -> StopReason:
    if piece.event.finish_reason == "context":
        return "model_context_window_exceeded"
    if piece.event.finish_reason != "stop":
        return "max_tokens"
    if stop_text is not None:
        return "stop_sequence"
    return "tool_use" if piece.has_tool_calls else "end_turn"


def _wanted(body: MessagesRequest, piece: AnswerEvent) -> list[Delta]:
    """The deltas that the client gets: none, if the prompt was only to be read."""
    return piece.deltas if body.max_tokens else []


def _usage(completion: Completion, num_reasoning: int, most: int) -> MessageUsage:
    return MessageUsage(
        input_tokens=completion.prompt_tokens - completion.cached_tokens,
        cache_creation_input_tokens=0,
        cache_read_input_tokens=completion.cached_tokens,
        output_tokens=min(len(completion.token_ids), most),
        output_tokens_details=AnswerDetails(thinking_tokens=num_reasoning),
    )

"""/v1/messages and /v1/messages/count_tokens."""

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from mlxr.runtime.engine.completion import Completion
from mlxr.server.anthropic.conversation import hides_thinking, job_of
from mlxr.server.anthropic.messages_request import Conversation, MessagesRequest
from mlxr.server.blocks import Block, Blocks, Change, arguments_of
from mlxr.server.chat.answer import Piece, answer
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.delta import Delta
from mlxr.server.documents.answers import answers
from mlxr.server.documents.json_form import dumped
from mlxr.server.documents.other_answers import TokenCount, WholeMessage
from mlxr.server.errors import anthropic_body
from mlxr.server.large_body_route import LargeBodyRoute, made
from mlxr.server.request_record import noted_warnings
from mlxr.server.sse import Stream, unless_gone
from mlxr.server.state import ServerState

router = APIRouter(route_class=LargeBodyRoute)
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'


@router.post("/v1/messages", tags=["Anthropic"], responses=answers(WholeMessage, "text/event-stream"))
async def messages(body: MessagesRequest, request: Request) -> Response:
    """Answers a conversation."""
    state = ServerState.of(request)
    state.pool.find(body.model)
    job = await made(request, lambda: job_of(body))
    if body.stream:
        return Stream(
            _stream(state, body, job),
            failed=lambda error: _event("error", anthropic_body(error)),
            alive_seconds=state.settings.alive_seconds,
            alive=lambda: state.alive(body.model) if state.pool.find(body.model).progress else _PING,
        )
    return JSONResponse(await unless_gone(request, _whole(state, body, job)))


@router.post("/v1/messages/count_tokens", tags=["Anthropic"], response_model=None, responses=answers(TokenCount))
async def count_tokens(body: Conversation, request: Request) -> dict[str, Any]:
    """How many tokens a conversation has, up to where the answer begins."""
    state = ServerState.of(request)
    state.pool.find(body.model)
    job = await made(request, lambda: job_of(body))
    async with state.pool.use(body.model) as model:
        return {"input_tokens": len(await model.format.prompt(job)), **noted_warnings()}


async def _whole(state: ServerState, body: MessagesRequest, job: ChatJob) -> dict[str, Any]:
    blocks, last = Blocks(), None
    async with state.pool.use(body.model) as model, aclosing(answer(model, job)) as pieces:
        async for piece in pieces:
            for _ in blocks.add(_wanted(body, piece)):
                pass
            last = piece
    assert last is not None, "an answer has a last event"
    hidden = hides_thinking(body)
    return _message(body.model) | {
        "content": [_block(block, hidden) for block in blocks.all],
        **_end(body, last),
        "usage": _usage(_completion(last), blocks.num_reasoning, body.max_tokens),
        **noted_warnings(),
    }


async def _stream(state: ServerState, body: MessagesRequest, job: ChatJob) -> AsyncGenerator[bytes]:
    blocks, hidden, last = Blocks(), hides_thinking(body), None
    async with state.pool.use(body.model) as model:
        prompt = await model.format.prompt(job)
        async with aclosing(answer(model, job, prompt=prompt)) as pieces:
            async for piece in pieces:
                if last is None:
                    usage = _usage(Completion(len(prompt), cached_tokens=piece.event.cached_tokens), 0, 0)
                    message = _message(body.model) | {"content": [], "usage": usage} | noted_warnings()
                    yield _event("message_start", {"type": "message_start", "message": message})
                for change in blocks.add(_wanted(body, piece)):
                    yield _changed(change, hidden)
                last = piece
    assert last is not None, "an answer has a last event"
    for change in blocks.end():
        yield _changed(change, hidden)
    end = {"delta": _end(body, last), "usage": _usage(_completion(last), blocks.num_reasoning, body.max_tokens)}
    yield _event("message_delta", {"type": "message_delta"} | end)
    yield _event("message_stop", {"type": "message_stop"})


def _changed(change: Change, hidden: bool) -> bytes:
    block = change.block
    head: dict[str, Any] = {"type": f"content_block_{_EVENTS[change.kind]}", "index": block.index}
    if change.kind == "begin":
        return _event(head["type"], head | {"content_block": _block(Block(0, block.kind, block.call_id, block.name))})
    if change.kind == "end":
        signature = head | {"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": ""}}
        before = _event("content_block_delta", signature) if block.kind == "reasoning" else b""
        return before + _event(head["type"], head)
    kind, key = _DELTAS[block.kind]
    if block.kind == "reasoning" and hidden:
        return b""
    return _event(head["type"], head | {"delta": {"type": kind, key: change.text}})


_EVENTS = {"begin": "start", "grow": "delta", "end": "stop"}
_DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


def _block(block: Block, hidden: bool = False) -> dict[str, Any]:
    if block.kind == "call":
        return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": arguments_of(block)}
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": "" if hidden else block.text, "signature": ""}
    return {"type": "text", "text": block.text}


def _message(model: str) -> dict[str, Any]:
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "stop_reason": None,
        "stop_sequence": None,
    }


def _completion(piece: Piece) -> Completion:
    assert piece.event.completion is not None, "the last event of an answer has it"
    return piece.event.completion


def _end(body: MessagesRequest, piece: Piece) -> dict[str, Any]:
    if not body.max_tokens:
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    stop_text = _completion(piece).stop_text
    return {"stop_reason": _stop_reason(piece, stop_text), "stop_sequence": stop_text}


def _stop_reason(piece: Piece, stop_text: str | None) -> str:
    if piece.event.finish_reason == "context":
        return "model_context_window_exceeded"
    if piece.event.finish_reason != "stop":
        return "max_tokens"
    if stop_text is not None:
        return "stop_sequence"
    return "tool_use" if piece.has_tool_calls else "end_turn"


def _wanted(body: MessagesRequest, piece: Piece) -> list[Delta]:
    """What of a piece is told: nothing, if the prompt was only to be read."""
    return piece.deltas if body.max_tokens else []


def _usage(completion: Completion, num_reasoning: int, most: int) -> dict[str, Any]:
    return {
        "input_tokens": completion.prompt_tokens - completion.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": completion.cached_tokens,
        "output_tokens": min(len(completion.token_ids), most),
        "output_tokens_details": {"thinking_tokens": num_reasoning},
    }


def _event(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {dumped(data)}\n\n".encode()

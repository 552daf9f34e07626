"""/v1/responses: answers, and those that are kept for requests that go on from them."""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import TypeAdapter
from starlette.responses import Response

from mlxr.server.chat.answer import answer
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.documents.answers import answers
from mlxr.server.documents.json_form import EscapedJson
from mlxr.server.documents.responses_answers import DeletedResponse, InputTokens, ResponseItems
from mlxr.server.documents.responses_answers import Response as WholeResponse
from mlxr.server.errors import ApiError, bad_field
from mlxr.server.large_body_route import LargeBodyRoute, made
from mlxr.server.openai.kept_responses import owner_of
from mlxr.server.openai.response_events import GrowingResponse
from mlxr.server.openai.responses_items import Item, MessageItem, ReferenceItem, listed_items
from mlxr.server.openai.responses_request import (
    InputTokensRequest,
    ResponsesRequest,
    conversation_of,
    job_of,
    toolkit_of,
)
from mlxr.server.request_record import note_warning
from mlxr.server.security import key_of
from mlxr.server.sse import Stream, unless_gone
from mlxr.server.state import ServerState

router = APIRouter(route_class=LargeBodyRoute)
_ITEMS: TypeAdapter[list[Item]] = TypeAdapter(list[Item])
_LOG = logging.getLogger("mlxr.server")


@router.post("/v1/responses", tags=["OpenAI"], responses=answers(WholeResponse, "text/event-stream"))
async def responses(body: ResponsesRequest, request: Request) -> Response:
    """Answers a conversation."""
    state = ServerState.of(request)
    state.pool.find(body.model)
    own = await _own_items(state, body, request)
    full = body.model_copy(update={"input": [*await _earlier(state, body, request), *own]})
    kit = toolkit_of(full)
    job, growing = await made(request, lambda: job_of(full, kit)), GrowingResponse(body, kit)
    if body.store is not False and state.responses.most_bytes:
        growing.is_kept = True
    elif body.store:
        note_warning("store is without effect: this server was started with --keep-responses 0")
    events = _events(state, body, job, growing, own, _owner(request))
    if body.stream:
        return Stream(
            events,
            failed=growing.failed,
            alive_seconds=state.settings.alive_seconds,
            alive=lambda: state.alive(body.model),
        )
    return EscapedJson(await unless_gone(request, _whole(events, growing)))


@router.post("/v1/responses/input_tokens", tags=["OpenAI"], responses=answers(InputTokens))
async def input_tokens(body: InputTokensRequest, request: Request) -> Response:
    """How many tokens a conversation has, up to where the answer begins."""
    state = ServerState.of(request)
    state.pool.find(body.model)
    items = [*await _earlier(state, body, request), *await _own_items(state, body, request)]
    full = body.model_copy(update={"input": items})
    job = await made(request, lambda: conversation_of(full, toolkit_of(full)))
    async with state.pool.use(body.model) as model:
        count = len(await model.format.prompt(job))
        return EscapedJson(InputTokens(object="response.input_tokens", input_tokens=count))


@router.post("/v1/responses/compact", include_in_schema=False)
async def compact() -> None:
    """Is not done."""
    message = "this server makes no conversation shorter: ask a model for a summary, and go on from that"
    raise ApiError(501, message, code="unsupported")


@router.get("/v1/responses/{response_id}", tags=["OpenAI"], responses=answers(WholeResponse))
async def kept(response_id: str, request: Request, stream: bool = False) -> Response:
    """A response that is kept."""
    if stream:
        raise bad_field("stream", "stream is true, and only responses that have ended are kept: leave it out")
    store = ServerState.of(request).responses
    return EscapedJson(await asyncio.to_thread(store.response, response_id, _owner(request)))


@router.get("/v1/responses/{response_id}/input_items", tags=["OpenAI"], responses=answers(ResponseItems))
async def kept_input(
    response_id: str,
    request: Request,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> Response:
    """The items that a response answered, a page of them."""
    store = ServerState.of(request).responses
    items = listed_items(await asyncio.to_thread(store.input_items, response_id, _owner(request)))
    items = items[::-1] if order == "desc" else items
    names = [item["id"] for item in items]
    if after is not None and after not in names:
        raise ApiError(404, f"there is no item {after!r:.80} among the response's", param="after", code="not_found")
    start = 0 if after is None else names.index(after) + 1
    page = items[start : start + limit]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    more = start + limit < len(items)
    return EscapedJson(ResponseItems(object="list", data=page, has_more=more, first_id=first, last_id=last))


@router.delete("/v1/responses/{response_id}", tags=["OpenAI"], responses=answers(DeletedResponse))
async def delete(response_id: str, request: Request) -> Response:
    """Removes a response that is kept."""
    await asyncio.to_thread(ServerState.of(request).responses.delete, response_id, _owner(request))
    return EscapedJson(DeletedResponse(id=response_id, object="response", deleted=True))


async def _earlier(state: ServerState, body: InputTokensRequest, request: Request) -> list[Item]:
    """The conversation that the request goes on from."""
    if body.previous_response_id is None:
        return []
    store, name = state.responses, body.previous_response_id
    return _ITEMS.validate_python(await asyncio.to_thread(store.conversation, name, _owner(request)))


async def _own_items(state: ServerState, body: InputTokensRequest, request: Request) -> list[Item]:
    """The request's items, with those that it names only."""
    if isinstance(body.input, str):
        return [MessageItem(role="user", content=body.input)]
    items = []
    for item in body.input:
        if isinstance(item, ReferenceItem):
            found = await asyncio.to_thread(state.responses.item, item.id, _owner(request))
            items += _ITEMS.validate_python([found])
        else:
            items.append(item)
    return items


def _owner(request: Request) -> str:
    return owner_of(key_of(request.scope["headers"]) if ServerState.of(request).settings.api_keys else "")


async def _whole(events: AsyncGenerator[bytes], growing: GrowingResponse) -> WholeResponse:
    async with aclosing(events):
        async for _ in events:
            pass
    return growing.whole()


async def _events(
    state: ServerState, body: ResponsesRequest, job: ChatJob, growing: GrowingResponse, own: list[Item], owner: str
) -> AsyncGenerator[bytes]:
    async with (
        state.pool.use(body.model) as model,
        aclosing(answer(model, job, priority=body.priority or 0)) as pieces,
    ):
        async for piece in pieces:
            if not growing.has_begun:
                for event in growing.begin():
                    yield event
            for event in growing.add(piece):
                yield event
    if growing.is_kept:
        given = [{"type": item.type} | item.model_dump(by_alias=True, exclude_unset=True) for item in own]
        growing.is_kept = await asyncio.to_thread(
            _save, state, growing.whole().model_dump(exclude_unset=True), given, owner
        )
    yield growing.last()


def _save(state: ServerState, response: dict[str, Any], given: list[dict[str, Any]], owner: str) -> bool:
    try:
        return state.responses.save(response, given, owner)
    except sqlite3.Error as error:  # a full disk, say: the answer is there all the same
        _LOG.error("a response could not be kept: %s", error)
        return False

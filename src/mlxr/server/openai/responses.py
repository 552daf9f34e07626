"""/v1/responses. Nothing is kept: a client sends the whole conversation each time."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from mlxr.server.chat.answer import answer
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.documents.answers import answers
from mlxr.server.documents.openai_answers import Response as WholeResponse
from mlxr.server.errors import ApiError
from mlxr.server.escaped_json import EscapedJson
from mlxr.server.openai.response_events import GrowingResponse
from mlxr.server.openai.responses_request import ResponsesRequest, job_of
from mlxr.server.sse import Stream, unless_gone
from mlxr.server.state import ServerState

router = APIRouter()


@router.post("/v1/responses", tags=["OpenAI"], responses=answers(WholeResponse, "text/event-stream"))
async def responses(body: ResponsesRequest, request: Request) -> Response:
    """Answers a conversation."""
    state = ServerState.of(request)
    state.pool.find(body.model)
    job, growing = job_of(body), GrowingResponse(body)
    events = _events(state, body, job, growing)
    if body.stream:
        return Stream(
            events,
            failed=growing.failed,
            alive_seconds=state.settings.alive_seconds,
            alive=lambda: state.alive(body.model),
        )
    return EscapedJson(await unless_gone(request, _whole(events, growing)))


@router.get("/v1/responses/{response_id}", tags=["OpenAI"])
@router.delete("/v1/responses/{response_id}", tags=["OpenAI"])
async def kept(response_id: str) -> None:
    """There is none."""
    raise ApiError(404, f"there is no response {response_id!r:.80}: this server keeps none", code="not_found")


async def _whole(events: AsyncGenerator[bytes], growing: GrowingResponse) -> dict[str, Any]:
    async with aclosing(events):
        async for _ in events:
            pass
    return growing.whole()


async def _events(
    state: ServerState, body: ResponsesRequest, job: ChatJob, growing: GrowingResponse
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

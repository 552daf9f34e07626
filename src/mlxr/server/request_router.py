"""`GET /requests`: the newest requests to models, and of each where its time went."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from mlxr.server.cache_owner import owner
from mlxr.server.documents.answers import Told, answers
from mlxr.server.documents.json_form import JsonAnswer
from mlxr.server.errors import ApiError
from mlxr.server.inspector.far_launches import FarLaunch, far_launches
from mlxr.server.inspector.watched import watched
from mlxr.server.request_times import ALL_CAUSES
from mlxr.server.state import ServerState

router = APIRouter(prefix="/requests", tags=["Server"])


class RequestView(Told):
    """A request that has ended.

    Attributes:
        time: when it ended, in seconds since 1970.
        ms: how long it took; first_token_ms: to its first token.
        slowest: what took most of that, a key of `spent_ms`; why: the same in words.
        spent_ms: milliseconds by cause; they add up to `ms`.
        missed_tokens: tokens of the prompt that the prefix cache did not have.
        differs_at: the first of these, counted from 0, where the cache had another token; null: it had none there.
    """

    time: float
    request_id: str
    method: str
    path: str
    status: int
    model: str
    ms: float
    first_token_ms: float | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish_reasons: list[str]
    slowest: str | None
    why: str | None
    spent_ms: dict[str, float]
    missed_tokens: int | None
    differs_at: int | None
    error: str | None
    client_gone: bool


class RequestDetail(RequestView):
    """The same, and the launches of its model that were measured and are furthest from what memory and chip allow."""

    launches: list[FarLaunch]


class RequestList(Told):
    """The newest one first."""

    requests: list[RequestView]


@router.get("", responses=answers(RequestList))
async def newest(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=512, description="how many at most")] = 50,
    model: Annotated[str, Query(description="of this model alone; empty: of all")] = "",
) -> JsonAnswer:
    """The newest requests to models that this key has sent."""
    found = ServerState.of(request).recent.newest(owner(), limit, model)
    return JsonAnswer({"requests": [_view(told) for told in found]})


@router.get("/{request_id}", responses=answers(RequestDetail))
async def one(request_id: str, request: Request) -> JsonAnswer:
    """A request by its name, which is the header x-request-id of its answer: why was it slow?

    Raises:
        ApiError: this key has sent none of that name lately.
    """
    state = ServerState.of(request)
    told = state.recent.get(owner(), request_id)
    if told is None:
        message = "no request of this name has ended lately: its name is the header x-request-id of its answer"
        raise ApiError(404, message, code="not_found")
    return JsonAnswer(_view(told) | {"launches": await _launches(state, str(told["model"]))})


async def _launches(state: ServerState, name: str) -> list[dict[str, Any]]:
    """Those of the model, if it is loaded and some were timed."""
    loaded = next((model.loaded for model in state.pool.forms if model.name == name), None)
    if loaded is None:
        return []
    looked = watched(loaded.engine)
    found = await asyncio.to_thread(far_launches, looked.inspector(), looked.timed)
    return [launch.model_dump() for launch in found]


def _view(told: dict[str, Any]) -> dict[str, Any]:
    names = [name for name in RequestView.model_fields if name not in ("why", "client_gone")]
    view = {name: told.get(name) for name in names}
    return view | {"why": ALL_CAUSES.get(str(told.get("slowest"))), "client_gone": bool(told.get("client_gone"))}

"""/api/pull: has a model fetched from the hub, and tells how far that is."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from mlxr.hub.reference import hub_reference, without_hub
from mlxr.registry import RegistryError
from mlxr.registry.records import check_name
from mlxr.server.documents.answers import answers
from mlxr.server.documents.other_answers import OllamaPull
from mlxr.server.errors import ApiError, bad_field, ollama_body
from mlxr.server.fields import ApiModel, WithoutEffect
from mlxr.server.large_body_route import JsonRoute
from mlxr.server.pool.pulls import Pulls, PullStep
from mlxr.server.sse import Stream, unless_gone
from mlxr.server.state import ServerState

router = APIRouter(route_class=JsonRoute)


_ANSWERS = answers(
    OllamaPull,
    "application/x-ndjson",
    status_403="the server fetches no models",
    status_409="the name is that of another model here",
    status_422="the model is not supported",
    status_502="the hub has no such model, does not give it, or cannot be reached",
)


class PullRequest(ApiModel):
    """The body of /api/pull."""

    model: str | None = None
    name: str | None = None
    stream: bool | None = None
    insecure: WithoutEffect = None
    username: WithoutEffect = None
    password: WithoutEffect = None


@router.post("/api/pull", tags=["Ollama"], responses=_ANSWERS)
async def pull(body: PullRequest, request: Request) -> Response:
    """Fetches a model, if the server allows that; it is served then."""
    state = ServerState.of(request)
    if (asked := body.model or body.name) is None:
        raise bad_field("model", "model is missing: it is required")
    if not state.settings.allow_pull:
        raise ApiError(
            403,
            "this server fetches no models: start it with --allow-pull, or fetch the model with 'mlxr pull ORG/REPO'",
            "permission_error",
            "pull_not_allowed",
        )
    name = without_hub(asked).removesuffix(":latest")
    if hub_reference(name) is None:
        if any(model.name in (name, asked) for model in state.pool.models):
            return JSONResponse({"status": "success"})  # it is here, and nothing newer is anywhere
        raise bad_field(
            "model", f"model is {asked!r:.80}, and models come from huggingface.co: expected ORG/REPO or ORG/REPO:FILE"
        )
    try:
        check_name(name)
    except RegistryError as error:
        raise bad_field("model", str(error)) from error
    if body.stream is not False:
        return Stream(
            _lines(state.pulls, name),
            failed=lambda error: _line(ollama_body(error)),
            alive_seconds=state.settings.alive_seconds,
            media_type="application/x-ndjson",
            alive=None,
        )
    return JSONResponse(await unless_gone(request, _whole(state.pulls, name)))


async def _lines(pulls: Pulls, name: str) -> AsyncGenerator[bytes]:
    yield _line({"status": "pulling manifest"})
    async with aclosing(pulls.follow(name)) as steps:
        async for step in steps:
            yield _line(_record(step))
    yield _line({"status": "success"})


async def _whole(pulls: Pulls, name: str) -> dict[str, Any]:
    async with aclosing(pulls.follow(name)) as steps:
        async for _ in steps:
            pass
    return {"status": "success"}


def _record(step: PullStep) -> dict[str, Any]:
    """A step as Ollama tells it: clients show a bar for each digest."""
    if step.file is None:
        return {"status": step.what}
    kind = "sha256" if len(step.file.digest) == 64 else "sha1"
    return {
        "status": step.what,
        "digest": f"{kind}:{step.file.digest}",
        "total": step.file.size_bytes,
        "completed": step.done,
    }


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"

"""/api/pull: has a model fetched from the hub, and tells how far that is."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import Response

from mlxr.hub.reference import hub_reference, without_hub
from mlxr.registry import RegistryError
from mlxr.registry.records import check_name
from mlxr.server.documents.answers import Told, answers
from mlxr.server.documents.json_form import JsonAnswer, json_text
from mlxr.server.documents.ollama_answers import OllamaPull
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
            return JsonAnswer(_SUCCESS)  # it is here, and nothing newer is anywhere
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
    await unless_gone(request, _finished(state.pulls, name))
    return JsonAnswer(_SUCCESS)


async def _lines(pulls: Pulls, name: str) -> AsyncGenerator[bytes]:
    yield _line(OllamaPull(status="pulling manifest"))
    async with aclosing(pulls.follow(name)) as steps:
        async for step in steps:
            yield _line(_record(step))
    yield _line(_SUCCESS)


async def _finished(pulls: Pulls, name: str) -> None:
    async with aclosing(pulls.follow(name)) as steps:
        async for _ in steps:
            pass


def _record(step: PullStep) -> OllamaPull:
    """A step as Ollama tells it: clients show a bar for each digest."""
    record = OllamaPull(status=step.what)
    if step.file is not None:
        kind = "sha256" if len(step.file.digest) == 64 else "sha1"
        record.digest = f"{kind}:{step.file.digest}"
        record.total, record.completed = step.file.size_bytes, step.done
    return record


def _line(record: Told) -> bytes:
    return f"{json_text(record)}\n".encode()


_SUCCESS = OllamaPull(status="success")

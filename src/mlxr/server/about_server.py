"""The server about itself: whether it lives and can answer, what it has loaded, what it counts."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from mlxr.compiler.version import VERSION
from mlxr.server.documents.answers import answers
from mlxr.server.documents.json_form import JsonAnswer
from mlxr.server.documents.server_answers import Health, ModelState, ServerInfo, Status, Version
from mlxr.server.errors import without_folders
from mlxr.server.state import ServerState

router = APIRouter()
READY: dict[int | str, dict[str, Any]] = {200: {"model": Health}, 503: {"model": Health, "description": "not ready"}}


@router.head("/health", include_in_schema=False)
@router.get("/health", tags=["Server"], responses=answers(Health))
async def health() -> Response:
    """The process lives."""
    return _health("ok")


@router.head("/ready", include_in_schema=False)
@router.get("/ready", tags=["Server"], responses=READY)
async def ready(request: Request) -> Response:
    """Whether it takes requests: it is not ending, and no loaded model has failed."""
    state = ServerState.of(request)
    if state.pool.is_closing:
        return _health("ending", 503)
    failed = [
        f"{model.name}: {without_folders(reason)}"
        for model in state.pool.forms
        if model.loaded is not None and (reason := model.loaded.engine.health()) is not None
    ]
    return _health("; ".join(failed) or "ready", 503 if failed else 200)


def _health(told: str, status: int = 200) -> Response:
    return JsonAnswer(Health(status=told), status)


@router.get("/version", tags=["Server"], responses=answers(Version))
async def version() -> Response:
    """The server's version."""
    return JsonAnswer(Version(version=VERSION))


@router.get("/server_info", tags=["Server"], responses=answers(ServerInfo))
async def server_info(request: Request) -> Response:
    """What sglang-router asks of a server: the name of its model, where it has only one."""
    models, info = ServerState.of(request).pool.models, ServerInfo(version=VERSION)
    if len(models) == 1:
        info.served_model_name = models[0].name
    return JsonAnswer(info)


@router.get("/metrics", tags=["Server"], response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def scrape(request: Request) -> Response:
    """What Prometheus collects."""
    text, content_type = await ServerState.of(request).metrics.render(request.headers.get("accept", ""))
    return Response(text, headers={"content-type": content_type})


@router.get("/status", tags=["Server"], responses=answers(Status))
async def status(request: Request) -> JsonAnswer:
    """The server, and its models, loaded or not. What is loaded for embeddings is listed by itself."""
    pool = ServerState.of(request).pool
    models = [
        ModelState(
            name=model.name,
            state=model.state,
            progress=model.progress,
            requests=model.users,
            context=None if model.loaded is None else model.loaded.context,
            memory=None if model.loaded is None else model.loaded.engine.model.context_line,
            bytes=model.planned_bytes if model.loaded is not None else 0,
            pinned=model.pinned,
        )
        for model in pool.listed
    ]
    told = Status(version=VERSION, state="ending" if pool.is_closing else "serving", models=models)
    return JsonAnswer(told)

"""Whether the server lives, and whether it can answer."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from mlxr.compiler.version import VERSION
from mlxr.server.documents.other_answers import Health
from mlxr.server.errors import without_folders
from mlxr.server.state import ServerState

router = APIRouter()
READY: dict[int | str, dict[str, Any]] = {200: {"model": Health}, 503: {"model": Health, "description": "not ready"}}


@router.head("/health", include_in_schema=False)
@router.get("/health", tags=["Server"])
async def health() -> dict[str, str]:
    """The process lives."""
    return {"status": "ok"}


@router.head("/ready", include_in_schema=False)
@router.get("/ready", tags=["Server"], responses=READY)
async def ready(request: Request) -> Response:
    """Whether it takes requests: it is not ending, and no loaded model has failed."""
    state = ServerState.of(request)
    if state.pool.is_closing:
        return JSONResponse({"status": "ending"}, 503)
    failed = [
        f"{model.name}: {without_folders(reason)}"
        for model in state.pool.forms
        if model.loaded is not None and (reason := model.loaded.engine.health()) is not None
    ]
    return JSONResponse({"status": "; ".join(failed) or "ready"}, 503 if failed else 200)


@router.get("/version", tags=["Server"])
async def version() -> dict[str, Any]:
    """The server's version."""
    return {"version": VERSION}


@router.get("/server_info", tags=["Server"])
async def server_info(request: Request) -> dict[str, str]:
    """What sglang-router asks of a server: the name of its model, where it has only one."""
    models = ServerState.of(request).pool.models
    return {"version": VERSION} | ({"served_model_name": models[0].name} if len(models) == 1 else {})

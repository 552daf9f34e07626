"""/status: what `mlxr ps` asks."""

from typing import Any

from fastapi import APIRouter, Request

from mlxr.compiler.version import VERSION
from mlxr.server.documents.answers import answers
from mlxr.server.documents.other_answers import Status
from mlxr.server.state import ServerState

router = APIRouter()


@router.get("/status", tags=["Server"], response_model=None, responses=answers(Status))
async def status(request: Request) -> dict[str, Any]:
    """The server, and its models, loaded or not. What is loaded for embeddings is told apart."""
    pool = ServerState.of(request).pool
    models = [
        {
            "name": model.name,
            "state": model.state,
            "progress": model.progress,
            "requests": model.users,
            "context": None if model.loaded is None else model.loaded.context,
            "memory": None if model.loaded is None else model.loaded.engine.model.context_line,
            "bytes": model.planned_bytes if model.loaded is not None else 0,
            "pinned": model.pinned,
        }
        for model in pool.listed
    ]
    return {"version": VERSION, "state": "ending" if pool.is_closing else "serving", "models": models}

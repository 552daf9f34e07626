"""What Ollama's API does with models' files, but for fetching: the server does not, and says which command does."""

from fastapi import APIRouter

from mlxr.server.documents.answers import OllamaError
from mlxr.server.errors import ApiError

router = APIRouter(responses={501: {"model": OllamaError, "description": "this server does not do that"}})
_ADD = "register a model's file with 'mlxr add FILE --name NAME' and start the server with it"


def _refused(path: str, what: str) -> ApiError:
    return ApiError(501, f"{path} is not served: {what}", "server_error", "not_implemented")


@router.post("/api/push", tags=["Ollama"])
async def push() -> None:
    """Refused."""
    raise _refused("/api/push", "this server sends models nowhere")


@router.post("/api/create", tags=["Ollama"])
async def create() -> None:
    """Refused."""
    raise _refused("/api/create", _ADD)


@router.post("/api/copy", tags=["Ollama"])
async def copy() -> None:
    """Refused."""
    raise _refused("/api/copy", "give a model a second name with 'mlxr serve --model NAME=MODEL'")


@router.delete("/api/delete", tags=["Ollama"])
async def delete() -> None:
    """Refused."""
    raise _refused("/api/delete", "forget a registered model with 'mlxr remove NAME'; its files are yours to delete")


@router.head("/api/blobs/{digest}", tags=["Ollama"])
@router.post("/api/blobs/{digest}", tags=["Ollama"])
async def blobs(digest: str) -> None:
    """Refused."""
    raise _refused(f"/api/blobs/{digest:.80}", _ADD)

"""What there is to know of models and the server: /api/tags, /api/show, /api/ps, /api/version."""

import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from mlxr.compiler.version import VERSION
from mlxr.inspect.report import parameters
from mlxr.server.documents.answers import answers
from mlxr.server.documents.other_answers import LoadedOllamaModels, OllamaModels, OllamaShow
from mlxr.server.errors import bad_field
from mlxr.server.fields import ApiModel, WithoutEffect
from mlxr.server.ollama.names import own_name
from mlxr.server.ollama.times import NEVER, written
from mlxr.server.pool.model_pool import FOREVER, ModelPool
from mlxr.server.pool.served_model import LoadedModel, ServedModel
from mlxr.server.state import ServerState

router = APIRouter()
_API_VERSION = "0.12.6"
"""The version of Ollama whose API this is: clients look at it to know what they may ask."""
_HOSTS_WITH_CARDS = ("metal", "cuda")


class ShowRequest(ApiModel):
    """The body of /api/show."""

    model: str | None = None
    name: str | None = None
    verbose: WithoutEffect = None


@router.head("/", include_in_schema=False)
async def alive() -> Response:
    """Clients ask this to know whether there is a server."""
    return Response()


@router.get("/api/version", tags=["Ollama"])
async def version() -> dict[str, str]:
    """The version of Ollama whose API this is, and the server's own."""
    return {"version": _API_VERSION, "mlxr": VERSION}


@router.get("/api/tags", tags=["Ollama"], response_model=None, responses=answers(OllamaModels))
async def tags(request: Request) -> dict[str, Any]:
    """All models, loaded or not."""
    return {"models": [_record(model) for model in ServerState.of(request).pool.models]}


@router.get("/api/ps", tags=["Ollama"], response_model=None, responses=answers(LoadedOllamaModels))
async def running(request: Request) -> dict[str, Any]:
    """The models that are loaded."""
    pool = ServerState.of(request).pool
    return {"models": [_running(pool, model, model.loaded) for model in pool.forms if model.loaded is not None]}


@router.post("/api/show", tags=["Ollama"], response_model=None, responses=answers(OllamaShow))
async def show(body: ShowRequest, request: Request) -> dict[str, Any]:
    """One model. It is loaded if it is not: what it can do is known only then."""
    pool = ServerState.of(request).pool
    if (asked := body.model or body.name) is None:
        raise bad_field("model", "model is missing: it is required")
    name = own_name(pool, asked)
    async with pool.use(name) as loaded:
        artifact = loaded.engine.model.artifact
        family = artifact.spec.model.tensor_names
        return {
            "modelfile": f"FROM {name}\n",
            "parameters": "",
            "template": loaded.template,
            "details": _details(loaded),
            "model_info": {
                "general.architecture": family,
                "general.parameter_count": parameters(artifact),
                f"{family}.context_length": loaded.context,
                f"{family}.block_count": artifact.plan.num_layers,
                f"{family}.vocab_size": artifact.plan.vocab_size,
            },
            "capabilities": _capabilities(loaded),
            "modified_at": written(pool.find(name).created),
        }


def _capabilities(loaded: LoadedModel) -> list[str]:
    capabilities = ["completion"]
    if loaded.chat_format is not None:
        capabilities += ["tools"] if loaded.chat_format.takes_tools else []
        capabilities += ["thinking"] if loaded.chat_format.thinks else []
    return capabilities


def _record(model: ServedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": written(model.created),
        "size": model.planned_bytes,
        "digest": "" if model.loaded is None else model.loaded.engine.model.artifact.digest,
        "details": _details(model.loaded),
    }


def _running(pool: ModelPool, model: ServedModel, loaded: LoadedModel) -> dict[str, Any]:
    keep = pool.keep_alive if model.keep_alive is None else model.keep_alive
    idle = 0.0 if model.users else time.monotonic() - model.last_used
    on_card = loaded.engine.model.host.name in _HOSTS_WITH_CARDS
    return _record(model) | {
        "model": model.base or model.name,
        "expires_at": NEVER if model.pinned or keep == FOREVER else written(time.time() + keep - idle),
        "size_vram": model.planned_bytes if on_card else 0,
        "context_length": loaded.context,
    }


def _details(loaded: LoadedModel | None) -> dict[str, Any]:
    """What a model is, as far as it is known before it is loaded."""
    details: dict[str, Any] = {"parent_model": "", "format": "mlxr", "family": "", "families": []}
    details |= {"parameter_size": "", "quantization_level": ""}
    if loaded is None:
        return details
    artifact = loaded.engine.model.artifact
    count, family = parameters(artifact), artifact.spec.model.tensor_names
    size = f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"
    level = str(artifact.spec.weights.default).upper()
    return details | {"family": family, "families": [family], "parameter_size": size, "quantization_level": level}

"""Adapters over HTTP: /lora-adapters as llama.cpp's server has it, and /v1/load_lora_adapter as vLLM has it.

Where one model is served, requests need not name it. Adapters are numbered in the order of /lora-adapters.
"""

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from mlxr.compiler.errors import WeightsError
from mlxr.loading.adapter_paths import parse_adapter
from mlxr.runtime.engine.adapter_set import LoadedAdapter, check_scale
from mlxr.server.documents.server_answers import ListedAdapter
from mlxr.server.errors import ApiError, without_folders
from mlxr.server.fields import ApiModel
from mlxr.server.openai.sampling_fields import LoraScale
from mlxr.server.pool.chosen_adapter import one_of
from mlxr.server.pool.loaded_model import LoadedModel
from mlxr.server.pool.served_engine import ServedEngine
from mlxr.server.state import ServerState

router = APIRouter()
TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}
LIST: dict[int | str, dict[str, Any]] = {200: {"model": list[ListedAdapter]}}


class LoadAdapterRequest(ApiModel):
    """The body of /v1/load_lora_adapter."""

    lora_name: str
    lora_path: str
    model: str | None = None
    load_inplace: bool | None = None
    """Whether one of that name may be there already."""


class UnloadAdapterRequest(ApiModel):
    """The body of /v1/unload_lora_adapter."""

    lora_name: str
    lora_int_id: int | None = None
    model: str | None = None


def _engine(loaded: LoadedModel) -> ServedEngine:
    assert isinstance(loaded.engine, ServedEngine), "the server's own"
    return loaded.engine


def _listed(engine: ServedEngine) -> Response:
    scales = engine.usual_scales
    told = [
        ListedAdapter(id=i, name=a.name, path=a.path.name, scale=scales.get(a.name, 0.0), rank=a.rank)
        for i, a in enumerate(engine.adapters())
    ]
    return JSONResponse([adapter.fields() for adapter in told])


@router.get("/lora-adapters", tags=["Adapters"], responses=LIST)
async def adapters(request: Request, model: str | None = None) -> Response:
    """The adapters of a model, each with the scale that it has for requests that say nothing."""
    async with ServerState.of(request).use(model) as loaded:
        return _listed(_engine(loaded))


@router.post("/lora-adapters", tags=["Adapters"], responses=LIST)
async def set_scales(body: list[LoraScale], request: Request, model: str | None = None) -> Response:
    """Says which adapter requests use that say nothing; of those that are not listed, the scale is 0."""
    scales = [(entry.id, check_scale(entry.scale)) for entry in body]
    async with ServerState.of(request).use(model) as loaded:
        engine = _engine(loaded)
        adapters = engine.adapters()
        one_of(adapters, scales)
        engine.usual_scales.clear()
        engine.usual_scales.update({adapters[number].name: scale for number, scale in scales})
        return _listed(engine)


@router.post("/v1/load_lora_adapter", tags=["Adapters"], response_class=Response, responses=TEXT)
async def load_adapter(body: LoadAdapterRequest, request: Request) -> Response:
    """Loads an adapter from this machine's disk."""
    state = ServerState.of(request)
    _check_allowed(state)
    name = state.only_name() if body.model is None else body.model
    adapter = parse_adapter(body.lora_path, body.lora_name)
    async with state.pool.use(name) as loaded:
        engine = _engine(loaded)
        if not body.load_inplace and any(one.name == body.lora_name for one in engine.adapters()):
            message = f"there is an adapter {body.lora_name!r} already: unload it, or set load_inplace"
            raise ApiError(400, message, code="adapter_exists", param="lora_name")
        try:
            await asyncio.to_thread(engine.load_adapter, adapter.path, adapter.name, adapter.scale)
        except WeightsError as error:  # of what the client has named, not of the model
            raise ApiError(400, without_folders(error), code="bad_adapter", param="lora_path") from error
        state.pool.has_adapter(name, adapter, engine.model.adapters.places)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


@router.post("/v1/unload_lora_adapter", tags=["Adapters"], response_class=Response, responses=TEXT)
async def unload_adapter(body: UnloadAdapterRequest, request: Request) -> Response:
    """Unloads an adapter; answers that use it go on."""
    state = ServerState.of(request)
    _check_allowed(state)
    name = state.only_name() if body.model is None else body.model
    if state.pool.forget_adapter(name, body.lora_name):
        return _removed(body)
    async with state.pool.use(name) as loaded:
        engine = _engine(loaded)
        before = engine.adapters()
        if all(one.name != body.lora_name for one in before):
            message = f"there is no adapter {body.lora_name!r}: {_names(before)}"
            raise ApiError(404, message, code="adapter_not_found", param="lora_name")
        await asyncio.to_thread(engine.unload_adapter, body.lora_name)
        state.pool.lost_adapter(name, body.lora_name)
    return _removed(body)


def _removed(body: UnloadAdapterRequest) -> Response:
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _names(adapters: tuple[LoadedAdapter, ...]) -> str:
    return f"this model has {', '.join(one.name for one in adapters) or 'none'}"


def _check_allowed(state: ServerState) -> None:
    if not state.settings.allow_adapters:
        message = "this server loads no adapters for clients; start it with --allow-adapters"
        raise ApiError(403, message, "permission_error", "adapters_not_allowed")

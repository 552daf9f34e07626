"""/v1/models, for clients of OpenAI and of Anthropic: each finds its own fields, and passes over the others."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime

from fastapi import APIRouter, Request

from mlxr.compiler.errors import MlxrError
from mlxr.server.documents.answers import answers
from mlxr.server.documents.json_form import JsonAnswer
from mlxr.server.documents.openai_answers import ListedModel, ModelList
from mlxr.server.pool.served_model import ServedModel
from mlxr.server.state import ServerState

router = APIRouter()


@router.get("/v1/models", tags=["OpenAI"], responses=answers(ModelList))
async def models(request: Request) -> JsonAnswer:
    """All models, loaded or not."""
    served = ServerState.of(request).pool.models
    records = await asyncio.to_thread(lambda: [record for model in served for record in _records(model)])
    first, last = (records[0].id, records[-1].id) if records else (None, None)
    return JsonAnswer(ModelList(object="list", data=records, has_more=False, first_id=first, last_id=last))


@router.get("/v1/models/{name:path}", tags=["OpenAI"], responses=answers(ListedModel))
async def model(name: str, request: Request) -> JsonAnswer:
    """One model."""
    found, adapter = ServerState.of(request).pool.resolve(name)
    record = await asyncio.to_thread(_record, found)
    return JsonAnswer(record if adapter is None else _of_adapter(record, adapter))


def _records(model: ServedModel) -> list[ListedModel]:
    """A model, and each of its adapters."""
    own = _record(model)
    return [own, *(_of_adapter(own, adapter) for adapter in model.adapters)]


def _of_adapter(base: ListedModel, adapter: str) -> ListedModel:
    name = f"{base.id}:{adapter}"
    return base.model_copy(update={"id": name, "display_name": name, "parent": base.id})


def _record(model: ServedModel) -> ListedModel:
    record = ListedModel(
        id=model.name,
        object="model",
        created=model.created,
        owned_by="mlxr",
        type="model",
        display_name=model.name,
        created_at=datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        lifecycle="active",
    )
    context = None
    if (loaded := model.loaded) is not None:
        context = loaded.context
    else:
        with suppress(MlxrError, OSError):  # whoever loads it is told what is wrong
            context = model.source.facts().context
    record.max_model_len = record.max_input_tokens = record.max_tokens = context
    return record

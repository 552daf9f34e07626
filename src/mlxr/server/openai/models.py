"""/v1/models, for clients of OpenAI and of Anthropic: each finds its own fields, and passes over the others."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request

from mlxr.compiler.errors import MlxrError
from mlxr.server.documents.answers import answers
from mlxr.server.documents.openai_answers import ModelList, ModelRecord
from mlxr.server.pool.served_model import ServedModel
from mlxr.server.state import ServerState

router = APIRouter()


@router.get("/v1/models", tags=["OpenAI"], response_model=None, responses=answers(ModelList))
async def models(request: Request) -> dict[str, Any]:
    """All models, loaded or not."""
    served = ServerState.of(request).pool.models
    records = await asyncio.to_thread(lambda: [_record(model) for model in served])
    ends = {"first_id": records[0]["id"], "last_id": records[-1]["id"]} if records else {}
    return {"object": "list", "data": records, "has_more": False, "first_id": None, "last_id": None} | ends


@router.get("/v1/models/{name:path}", tags=["OpenAI"], response_model=None, responses=answers(ModelRecord))
async def model(name: str, request: Request) -> dict[str, Any]:
    """One model."""
    return await asyncio.to_thread(_record, ServerState.of(request).pool.find(name))


def _record(model: ServedModel) -> dict[str, Any]:
    record: dict[str, Any] = {"id": model.name, "object": "model", "created": model.created, "owned_by": "mlxr"}
    created = datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    record |= {"type": "model", "display_name": model.name, "created_at": created}
    if (loaded := model.loaded) is not None:
        return record | {"max_model_len": loaded.context}
    with suppress(MlxrError, OSError):  # whoever loads it is told what is wrong
        record["max_model_len"] = model.source.facts().context
    return record

"""/api/embed, and /api/embeddings, which clients asked before there was the other."""

import asyncio
import time
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from mlxr.server.documents.answers import answers
from mlxr.server.documents.json_form import json_form, json_text, json_with
from mlxr.server.documents.ollama_answers import OllamaEmbed, OllamaEmbedding
from mlxr.server.embedding import embed, numbers_text, written
from mlxr.server.embedding_prompts import Texts, check_texts, prompts_of
from mlxr.server.fields import ApiModel
from mlxr.server.large_body_route import JsonRoute
from mlxr.server.ollama.named_models import KeepAlive, loaded_or_unloaded, own_name, seconds_of
from mlxr.server.ollama.options import EmbedOptions, context_of
from mlxr.server.request_record import with_warnings
from mlxr.server.sse import unless_gone
from mlxr.server.state import ServerState

router = APIRouter(route_class=JsonRoute)


class CommonEmbedRequest(ApiModel):
    """The fields that both paths have."""

    model: str
    options: EmbedOptions | None = None
    keep_alive: KeepAlive = None


class EmbedRequest(CommonEmbedRequest):
    """The body of /api/embed."""

    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: int | None = Field(None, ge=1)


class EmbeddingsRequest(CommonEmbedRequest):
    """The body of /api/embeddings."""

    prompt: str | None = None


@router.post("/api/embed", tags=["Ollama"], responses=answers(OllamaEmbed))
async def embed_texts(body: EmbedRequest, request: Request) -> Response:
    """The embeddings of texts, of length 1; without a text it loads the model, or unloads it if keep_alive is 0."""
    state, given = ServerState.of(request), body.input
    if not given:
        await loaded_or_unloaded(state.pool, body.model, body.keep_alive, embeds=True, context=context_of(body.options))
        return _response(json_text(OllamaEmbed(model=body.model, embeddings=[])))
    texts = [given] if isinstance(given, str) else given
    check_texts(texts, state.settings.most_inputs, is_list=isinstance(given, list))
    options: dict[str, Any] = {"cuts": bool(body.truncate), "fix": "shorten it, or set truncate"}
    work = _embedded(state, body, texts, dimensions=body.dimensions, **options)
    told, numbers = await unless_gone(request, work)
    answer = with_warnings(OllamaEmbed(model=body.model, embeddings=[], **numbers))
    return _response(json_with(answer, embeddings=f"[{','.join(told)}]"))


@router.post("/api/embeddings", tags=["Ollama"], responses=answers(OllamaEmbedding))
async def embed_prompt(body: EmbeddingsRequest, request: Request) -> Response:
    """The embedding of a text, of any length; without a text it loads the model, or unloads it if keep_alive is 0."""
    state = ServerState.of(request)
    if not body.prompt:
        await loaded_or_unloaded(state.pool, body.model, body.keep_alive, embeds=True, context=context_of(body.options))
        return _response(_EMBEDDING("[]"))
    (told,), _ = await unless_gone(request, _embedded(state, body, [body.prompt], "prompt", normalize=False))
    return _response(_EMBEDDING(told))


async def _embedded(
    state: ServerState,
    body: CommonEmbedRequest,
    texts: Texts,
    field: str = "input",
    *,
    cuts: bool = False,
    fix: str = "shorten it",
    dimensions: int | None = None,
    normalize: bool = True,
) -> tuple[list[str], dict[str, Any]]:
    """The JSON text of each vector, and the answer's numbers; durations are in nanoseconds."""
    asked, name = time.perf_counter_ns(), own_name(state.pool, body.model)
    context = context_of(body.options)
    async with state.pool.use(name, seconds_of(body.keep_alive), embeds=True, context=context) as model:
        loaded = time.perf_counter_ns()
        prompts = await asyncio.to_thread(prompts_of, model, texts, field, cuts=cuts, fix=fix)
        vectors = await embed(model, prompts.ids, dimensions=dimensions, normalize=normalize)
    numbers: dict[str, Any] = {
        "total_duration": time.perf_counter_ns() - asked,
        "load_duration": loaded - asked,
        "prompt_eval_count": prompts.num_tokens,
    }
    return await written(vectors, numbers_text), numbers | ({"truncated": prompts.cut} if prompts.cut else {})


_EMBEDDING = json_form(OllamaEmbedding(embedding=[]), "embedding")


def _response(content: str) -> Response:
    return Response(content, media_type="application/json")

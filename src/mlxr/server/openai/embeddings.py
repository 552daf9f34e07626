"""/v1/embeddings: texts as vectors."""

import asyncio
import base64
from itertools import starmap
from typing import ClassVar, Literal, cast

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from mlxr.runtime.engine.pool import Pooling, Vector
from mlxr.server.documents.answers import answers
from mlxr.server.documents.json_form import json_form, json_text
from mlxr.server.documents.openai_answers import Embedding, Embeddings, InputUsage
from mlxr.server.embedding import embed, numbers_text, written
from mlxr.server.embedding_prompts import Texts, check_texts, prompts_of
from mlxr.server.errors import bad_field
from mlxr.server.fields import ApiModel, WithoutEffect
from mlxr.server.large_body_route import LargeBodyRoute
from mlxr.server.sse import unless_gone
from mlxr.server.state import ServerState

router = APIRouter(route_class=LargeBodyRoute)


class EmbeddingRequest(ApiModel):
    """The body of /v1/embeddings."""

    refused: ClassVar[dict[str, str]] = {
        "messages": "put the text into input",
        "truncate_prompt_tokens": "shorten the input",
        "input_type": "put what the model expects before a query or a text into input",
    }

    model: str
    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)
    user: WithoutEffect = None

    pooling: Pooling | None = None
    """How the rows of a text's tokens become one vector; None: as the model's own files say, else `mean`."""
    normalize: bool | None = None
    """Whether vectors have length 1; None: they have."""
    add_special_tokens: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None


@router.post("/v1/embeddings", tags=["OpenAI"], responses=answers(Embeddings))
async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
    """The embeddings of texts."""
    state = ServerState.of(request)
    state.pool.find(body.model)
    inputs, is_list = _inputs(body.input)
    check_texts(inputs, state.settings.most_inputs, is_list=is_list)
    content = await unless_gone(request, _answer(state, body, inputs))
    return Response(content, media_type="application/json")


def _inputs(given: str | list[str] | list[int] | list[list[int]]) -> tuple[Texts, bool]:
    """All texts, and whether they are a list in the request."""
    if not given and isinstance(given, list):
        raise bad_field("input", "input is an empty list: give at least one text")
    single = isinstance(given, str) or isinstance(given[0], int)
    return cast(Texts, [given] if single else given), not single


async def _answer(state: ServerState, body: EmbeddingRequest, inputs: Texts) -> bytes:
    async with state.pool.use(body.model, embeds=True) as model:
        prompts = await asyncio.to_thread(prompts_of, model, inputs, add_special=body.add_special_tokens is not False)
        vectors = await embed(
            model,
            prompts.ids,
            pooling=body.pooling,
            dimensions=body.dimensions,
            normalize=body.normalize is not False,
            priority=body.priority or 0,
            salt=body.cache_salt or "",
        )
    told = await written(vectors, _base64_text if body.encoding_format == "base64" else numbers_text)
    data = ",".join(starmap(_EMBEDDING, enumerate(told)))
    return _EMBEDDINGS(f"[{data}]", json_text(body.model), prompts.num_tokens, prompts.num_tokens).encode()


_EMBEDDING = json_form(Embedding(object="embedding", index=0, embedding=""), "index", "embedding")
_EMBEDDINGS = json_form(
    Embeddings(object="list", data=[], model="", usage=InputUsage(prompt_tokens=0, total_tokens=0)),
    "data",
    "model",
    "prompt_tokens",
    "total_tokens",
)


def _base64_text(vector: Vector) -> str:
    """The bytes of little-endian f32 numbers, as a text in JSON."""
    return f'"{base64.b64encode(vector.astype("<f4").tobytes()).decode()}"'

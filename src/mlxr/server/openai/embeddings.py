"""/v1/embeddings: texts as vectors."""

import asyncio
import base64
from collections.abc import Sequence
from typing import ClassVar, Literal, cast

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from mlxr.compiler.errors import PromptTooLongError
from mlxr.runtime.engine.pool import Pooling, Vector
from mlxr.runtime.engine.too_long import check_length, too_long
from mlxr.server.documents.answers import answers
from mlxr.server.documents.openai_answers import Embeddings
from mlxr.server.embedding import embed
from mlxr.server.errors import ApiError, bad_field
from mlxr.server.fields import ApiModel, WithoutEffect
from mlxr.server.openai.json_text import dumped
from mlxr.server.pool.served_model import LoadedModel
from mlxr.server.sse import unless_gone
from mlxr.server.state import ServerState

router = APIRouter()


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
    inputs = _inputs(body.input)
    if len(inputs) > (most := state.settings.most_inputs):
        raise bad_field("input", f"input has {len(inputs)} texts; this server takes {most} at once: ask in parts")
    content = await unless_gone(request, _answer(state, body, inputs))
    return Response(content, media_type="application/json")


def _inputs(given: str | list[str] | list[int] | list[list[int]]) -> Sequence[str | list[int]]:
    single = isinstance(given, str) or (given and isinstance(given[0], int))
    inputs = cast(Sequence[str | list[int]], [given] if single else given)
    if not inputs:
        raise bad_field("input", "input is an empty list: give at least one text")
    for i, text in enumerate(inputs):
        if not text:
            raise bad_field("input", f"input{'' if single else f'[{i}]'} is empty: give some text")
    return inputs


async def _answer(state: ServerState, body: EmbeddingRequest, inputs: Sequence[str | list[int]]) -> bytes:
    async with state.pool.use(body.model, embeds=True) as model:
        prompts = await asyncio.to_thread(_prompts, model, body, inputs)
        vectors = await embed(
            model,
            prompts,
            pooling=body.pooling,
            dimensions=body.dimensions,
            normalize=body.normalize is not False,
            priority=body.priority or 0,
            salt=body.cache_salt or "",
        )
    pieces = []
    for index, vector in enumerate(vectors):
        told = _base64(vector) if body.encoding_format == "base64" else vector.tolist()
        pieces.append(dumped({"object": "embedding", "index": index, "embedding": told}))
        if index % 4 == 3:
            await asyncio.sleep(0)  # others go on
    tokens = sum(map(len, prompts))
    rest = dumped({"model": body.model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})
    return f'{{"object":"list","data":[{",".join(pieces)}],{rest[1:]}'.encode()


def _prompts(model: LoadedModel, body: EmbeddingRequest, inputs: Sequence[str | list[int]]) -> list[list[int]]:
    """The token ids of each text. Slow for long ones."""
    prompts = []
    for i, text in enumerate(inputs):
        try:
            if isinstance(text, str):
                tokenizer = model.engine.model.require_tokenizer()
                check_length(text, tokenizer, model.context, answered=False)
                ids = tokenizer.encode(text, add_special=body.add_special_tokens is not False)
            else:
                ids = text
            if len(ids) > model.context:
                raise too_long(f"the text has {len(ids)} tokens", model.context, "shorten it", answered=False)
        except PromptTooLongError as error:
            where = f"input[{i}]: " if len(inputs) > 1 else ""
            raise ApiError(400, f"{where}{error}", code="context_length_exceeded", param="input") from error
        prompts.append(model.engine.model.encode(ids))
    return prompts


def _base64(vector: Vector) -> str:
    """The bytes of little-endian f32 numbers."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()

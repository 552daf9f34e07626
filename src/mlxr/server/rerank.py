"""/v1/rerank and /rerank in Jina's form, /v2/rerank in Cohere's: documents by how well they answer a query."""

import asyncio
import uuid
from typing import ClassVar

from fastapi import APIRouter, Request
from pydantic import Field

from mlxr.compiler.errors import MlxrError, RequestError
from mlxr.runtime.engine.prompts import Pair
from mlxr.runtime.engine.ranking.ranker import Ranked, in_order
from mlxr.server.documents.answers import answers
from mlxr.server.documents.json_form import JsonAnswer
from mlxr.server.documents.rerank_answers import (
    CohereMeta,
    CohereReranked,
    CohereTokens,
    CohereVersion,
    RankedDocument,
    RankedNumber,
    RankedText,
    Reranked,
    RerankUsage,
)
from mlxr.server.embedding import embed
from mlxr.server.errors import ApiError, bad_field, without_folders
from mlxr.server.fields import ApiModel, WithoutEffect
from mlxr.server.large_body_route import LargeBodyRoute
from mlxr.server.sse import unless_gone
from mlxr.server.state import ServerState

router = APIRouter(route_class=LargeBodyRoute)


class DocumentText(ApiModel):
    """A document as an object."""

    text: str


class RerankFields(ApiModel):
    """What both APIs have."""

    model: str
    query: str
    documents: list[str | DocumentText]
    top_n: int | None = Field(None, ge=1)
    """How many of the best ones are wanted; None: all."""
    max_tokens_per_doc: int | None = Field(None, ge=1)
    """Tokens to which documents are cut; None: as many as the model takes."""
    priority: int | None = None

    @property
    def texts(self) -> list[str]:
        """The documents."""
        return [each if isinstance(each, str) else each.text for each in self.documents]


class RerankRequest(RerankFields):
    """The body of /v1/rerank and /rerank."""

    refused: ClassVar[dict[str, str]] = {"rank_fields": "put what is to be ranked into documents, as texts"}

    return_documents: bool | None = None
    """Whether results have their documents; None: they have, as in Jina's API."""
    truncation: WithoutEffect = None
    user: WithoutEffect = None


class CohereRerankRequest(RerankFields):
    """The body of /v2/rerank."""


@router.post("/v1/rerank", tags=["Jina"], responses=answers(Reranked))
@router.post("/rerank", tags=["Jina"], responses=answers(Reranked))
async def rerank(body: RerankRequest, request: Request) -> JsonAnswer:
    """Documents, the best one first."""
    ranked, tokens = await _ranked(body, request)
    results = _numbers(ranked) if body.return_documents is False else _documents(ranked, body.texts)
    usage = RerankUsage(prompt_tokens=tokens, total_tokens=tokens)
    return JsonAnswer(Reranked(id=_new_id(), model=body.model, usage=usage, results=results))


@router.post("/v2/rerank", tags=["Cohere"], responses=answers(CohereReranked))
async def cohere_rerank(body: CohereRerankRequest, request: Request) -> JsonAnswer:
    """The same in Cohere's form."""
    ranked, tokens = await _ranked(body, request)
    meta = CohereMeta(api_version=CohereVersion(version="2"), tokens=CohereTokens(input_tokens=tokens))
    return JsonAnswer(CohereReranked(id=_new_id(), results=_numbers(ranked), meta=meta))


async def _ranked(body: RerankFields, request: Request) -> tuple[list[Ranked], int]:
    """The best documents, and the tokens of all pairs."""
    state = ServerState.of(request)
    state.pool.find(body.model)
    if not body.query:
        raise bad_field("query", "query is empty: say what is looked for")
    if not body.documents:
        raise bad_field("documents", "documents is an empty list: give at least one")
    if len(body.documents) > state.settings.most_inputs:
        many, most = len(body.documents), state.settings.most_inputs
        raise bad_field("documents", f"documents has {many} texts; this server takes {most} at once: ask in parts")
    return await unless_gone(request, _scored(state, body))


async def _scored(state: ServerState, body: RerankFields) -> tuple[list[Ranked], int]:
    async with state.pool.use(body.model, embeds=True) as model:
        try:
            ranker = await asyncio.to_thread(model.engine.model.ranker)
        except MlxrError as error:
            raise ApiError(400, without_folders(error), code="model_does_not_rank", param="model") from error

        def pairs() -> list[Pair]:
            return [ranker.pair(body.query, text, body.max_tokens_per_doc) for text in body.texts]

        try:
            made = await asyncio.to_thread(pairs)
        except RequestError as error:
            raise ApiError(400, str(error), code="context_length_exceeded", param="query") from error
        vectors = await embed(model, made, pooling=ranker.pooling, normalize=False, priority=body.priority or 0)
    scores = [ranker.score(vector) for vector in vectors]
    return in_order(scores, body.top_n), sum(len(pair.ids) for pair in made)


def _numbers(ranked: list[Ranked]) -> list[RankedNumber]:
    return [RankedNumber(index=one.document, relevance_score=one.score) for one in ranked]


def _documents(ranked: list[Ranked], texts: list[str]) -> list[RankedDocument]:
    return [
        RankedDocument(index=one.document, relevance_score=one.score, document=RankedText(text=texts[one.document]))
        for one in ranked
    ]


def _new_id() -> str:
    return f"rerank-{uuid.uuid4().hex}"

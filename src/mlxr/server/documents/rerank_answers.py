"""Answers of /v1/rerank and /v2/rerank, in the forms of Jina and Cohere."""

from mlxr.server.documents.answers import Told


class RankedText(Told):
    """A document."""

    text: str


class RankedNumber(Told):
    """A document's number in the request, and its score: from 0 to 1."""

    index: int
    relevance_score: float


class RankedDocument(Told):
    """The same with the document."""

    index: int
    relevance_score: float
    document: RankedText


class RerankUsage(Told):
    """Tokens of all pairs of query and document."""

    prompt_tokens: int
    total_tokens: int


class Reranked(Told):
    """The best documents, the best one first."""

    id: str
    model: str
    usage: RerankUsage
    results: list[RankedNumber] | list[RankedDocument]


class CohereVersion(Told):
    """Of the API."""

    version: str


class CohereTokens(Told):
    """Tokens of all pairs."""

    input_tokens: int


class CohereMeta(Told):
    """What stands beside Cohere's answers."""

    api_version: CohereVersion
    tokens: CohereTokens


class CohereReranked(Told):
    """The same in Cohere's form."""

    id: str
    results: list[RankedNumber]
    meta: CohereMeta

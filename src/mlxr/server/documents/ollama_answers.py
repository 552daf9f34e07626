"""Answers of Ollama's API.

Where a class has several bases, the fields of the last one are written first.
"""

from typing import Any, Literal

from mlxr.server.documents.answers import LooseText, Told
from mlxr.server.documents.openai_answers import ChatToken


class OllamaHead(Told):
    """What each record has."""

    model: str
    created_at: str


class OllamaEnd(Told):
    """What the last record of an answer has, or the only one. Durations are in nanoseconds."""

    logprobs: list[ChatToken] | None = None
    done: Literal[True]
    done_reason: Literal["stop", "length", "load", "unload"]
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    warnings: list[str] | None = None


class OllamaMore(Told):
    """What the other records of a stream have."""

    logprobs: list[ChatToken] | None = None
    done: Literal[False]
    warnings: list[str] | None = None


class OllamaFunction(Told):
    """What is called."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(Told):
    """A call of a tool."""

    id: str
    function: OllamaFunction


class OllamaMessage(Told):
    """An answer to a conversation, or a part of one."""

    role: Literal["assistant"]
    content: LooseText
    thinking: LooseText | None = None
    tool_calls: list[OllamaCall] | None = None


class OllamaChatPart(OllamaHead):
    """A part of what /api/chat answers."""

    message: OllamaMessage


class OllamaTextPart(OllamaHead):
    """A part of what /api/generate answers."""

    response: LooseText
    thinking: LooseText | None = None


class OllamaChat(OllamaEnd, OllamaChatPart):
    """Of /api/chat."""


class OllamaText(OllamaEnd, OllamaTextPart):
    """Of /api/generate."""


class OllamaChatLine(OllamaMore, OllamaChatPart):
    """Of the stream of /api/chat; `OllamaChat` ends it."""


class OllamaTextLine(OllamaMore, OllamaTextPart):
    """Of the stream of /api/generate; `OllamaText` ends it."""


class OllamaEmbed(Told):
    """Of /api/embed. `truncated` has the places of the texts that were cut; it is not there if none was."""

    model: str
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    truncated: list[int] | None = None
    warnings: list[str] | None = None
    embeddings: list[list[float]]


class OllamaEmbedding(Told):
    """Of /api/embeddings."""

    embedding: list[float]


class OllamaVersion(Told):
    """Of /api/version: the version of Ollama whose API this is, and the server's own."""

    version: str
    mlxr: str


class OllamaDetails(Told):
    """What a model is; empty where its files cannot be read."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(Told):
    """A model."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaModels(Told):
    """Of /api/tags."""

    models: list[OllamaModel]


class LoadedOllamaModel(OllamaModel):
    """A loaded model."""

    expires_at: str
    size_vram: int
    context_length: int


class LoadedOllamaModels(Told):
    """Of /api/ps."""

    models: list[LoadedOllamaModel]


class OllamaShow(Told):
    """Of /api/show."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaPull(Told):
    """Of /api/pull."""

    status: str
    digest: str | None = None
    total: int | None = None
    completed: int | None = None

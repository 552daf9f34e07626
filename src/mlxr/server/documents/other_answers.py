"""Answers of Anthropic's API, of Ollama's, and of the server's own paths."""

from typing import Any, Literal

from mlxr.server.documents.answers import Told


class MessageUsage(Told):
    """Tokens of a message. Those from the cache are not among `input_tokens`."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: dict[str, int]


class WholeMessage(Told):
    """Of /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
    stop_sequence: str | None
    usage: MessageUsage
    warnings: list[str] | None = None


class TokenCount(Told):
    """Of /v1/messages/count_tokens."""

    input_tokens: int
    warnings: list[str] | None = None


class OllamaRecord(Told):
    """The last record of an answer, or the only one. Durations are in nanoseconds."""

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load", "unload"]
    thinking: str | None = None
    logprobs: list[dict[str, Any]] | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    warnings: list[str] | None = None


class OllamaMessage(Told):
    """An answer to a conversation."""

    role: Literal["assistant"]
    content: str
    thinking: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class OllamaChat(OllamaRecord):
    """Of /api/chat."""

    message: OllamaMessage


class OllamaText(OllamaRecord):
    """Of /api/generate."""

    response: str


class OllamaEmbed(Told):
    """Of /api/embed. `truncated` has the places of the texts that were cut; it is not there if none was."""

    model: str
    embeddings: list[list[float]]
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    truncated: list[int] | None = None


class OllamaEmbedding(Told):
    """Of /api/embeddings."""

    embedding: list[float]


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


class ModelState(Told):
    """A model and whether it is loaded."""

    name: str
    state: Literal["cold", "loading", "loaded", "unloading"]
    progress: str
    requests: int
    context: int | None
    memory: str | None
    bytes: int
    pinned: bool


class Status(Told):
    """Of /status."""

    version: str
    state: Literal["serving", "ending"]
    models: list[ModelState]


class Health(Told):
    """Of /health and /ready."""

    status: str

"""Answers of OpenAI's API, and of what goes with it."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import ConfigDict

from mlxr.server.documents.answers import LooseText, Told

ChatReason = Literal["stop", "length", "tool_calls"]
TextReason = Literal["stop", "length"]
"""Why an answer ended."""


class PromptDetails(Told):
    """Of the prompt's tokens."""

    cached_tokens: int


class CompletionDetails(Told):
    """Of the answer's tokens."""

    reasoning_tokens: int


class Usage(Told):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Function(Told):
    """What is called; the arguments are JSON as text."""

    name: str
    arguments: str


class Custom(Told):
    """What is called; the input is free text."""

    name: str
    input: LooseText


class ToolCall(Told):
    """A call of a tool."""

    id: str
    type: Literal["function", "custom"]
    function: Function | None = None
    custom: Custom | None = None


@dataclass
class TopToken:
    """A token and its log probability. An answer may have many thousands: other classes take longer."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    token: str
    logprob: float
    bytes: list[int]


@dataclass
class ChatToken(TopToken):
    """A token of the answer, and the most probable ones in its place."""

    top_logprobs: list[TopToken]


class ChatLogprobs(Told):
    """Log probabilities of an answer."""

    content: list[ChatToken]
    refusal: None


class ChatMessage(Told):
    """The answer."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(Told):
    """One of n answers."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatReason


class ChatCompletion(Told):
    """Of /v1/chat/completions. A stream's chunks have `delta` in place of `message`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    warnings: list[str] | None = None


class TextLogprobs(Told):
    """Log probabilities of a text's tokens."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(Told):
    """One of n texts."""

    text: str
    index: int
    logprobs: TextLogprobs | None
    finish_reason: TextReason


class TextCompletion(Told):
    """Of /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    system_fingerprint: str
    warnings: list[str] | None = None


class ListedModel(Told):
    """A model. How long its sequences may be is what its files say until it is loaded: memory may allow less."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    type: Literal["model"]
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_model_len: int | None = None
    max_input_tokens: int | None = None
    max_tokens: int | None = None
    parent: str | None = None


class ModelList(Told):
    """All models."""

    object: Literal["list"]
    data: list[ListedModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


class Tokens(Told):
    """Of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizedText(Told):
    """Of /detokenize."""

    prompt: str


class TokenizerInfo(Told):
    """Of /tokenizer_info."""

    vocab_size: int
    bos_token_id: int | None
    eos_token_id: int | None
    end_token_ids: list[int]
    add_bos_token: bool
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None


class Embedding(Told):
    """The vector of a text: numbers, or little-endian f32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class InputUsage(Told):
    """Tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(Told):
    """The vectors of all texts, in their order."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: InputUsage

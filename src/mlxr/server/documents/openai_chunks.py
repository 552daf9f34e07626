"""What streams of OpenAI's API consist of."""

from typing import Literal

from mlxr.server.documents.answers import LooseText, Told
from mlxr.server.documents.openai_answers import ChatLogprobs, ChatReason, TextLogprobs, TextReason, Usage


class RunningTokens(Told):
    """Tokens so far."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class FunctionDelta(Told):
    """The name comes first, and alone; the arguments are JSON as text, in pieces."""

    name: str = ""
    arguments: str


class CustomDelta(Told):
    """The name comes first, and alone; the input is free text, in pieces."""

    name: str = ""
    input: LooseText


class CallDelta(Told):
    """A call of a tool: the id and what is called come first."""

    index: int
    id: str = ""
    type: Literal["function", "custom"] = "function"
    function: FunctionDelta | None = None
    custom: CustomDelta | None = None


class ChatDelta(Told):
    """What is added to the answer."""

    role: Literal["assistant"] = "assistant"
    content: str = ""
    refusal: None = None
    reasoning_content: str = ""
    tool_calls: list[CallDelta] | None = None


class ChatChunkChoice(Told):
    """One of n answers."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatReason | None


class Chunk(Told):
    """What all chunks have.

    Attributes:
        warnings: in the first one, if there are any.
        usage: where it was asked for; null in all chunks but the last one, unless it was asked for in each.
    """

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    warnings: list[str] | None = None
    usage: Usage | RunningTokens | None = None


class ChatChunk(Chunk):
    """Of /v1/chat/completions."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]


class TextChunkChoice(Told):
    """One of n texts."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: TextReason | None


class TextChunk(Chunk):
    """Of /v1/completions."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[TextChunkChoice]

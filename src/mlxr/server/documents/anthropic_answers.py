"""Answers of Anthropic's API, and the events of its streams."""

from typing import Any, Literal

from mlxr.server.documents.answers import Told
from mlxr.server.documents.named_events import NamedEvent

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class AnswerDetails(Told):
    """Of the answer's tokens."""

    thinking_tokens: int


class MessageUsage(Told):
    """Tokens of a message. Those from the cache are not among `input_tokens`."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: AnswerDetails


class TextBlock(Told):
    """Text."""

    type: Literal["text"]
    text: str


class ThinkingBlock(Told):
    """What the model wrote for itself."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(Told):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


Block = TextBlock | ThinkingBlock | ToolUseBlock


class WholeMessage(Told):
    """Of /v1/messages. In the event that begins a stream, nothing is in it yet, and there is no reason to stop."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    stop_reason: StopReason | None
    stop_sequence: str | None
    content: list[Block]
    usage: MessageUsage
    warnings: list[str] | None = None


class TokenCount(Told):
    """Of /v1/messages/count_tokens."""

    input_tokens: int
    warnings: list[str] | None = None


class MessageStart(NamedEvent):
    """The first event of a stream."""

    type: Literal["message_start"]
    message: WholeMessage


class BlockStart(NamedEvent):
    """A block begins, without its text."""

    type: Literal["content_block_start"]
    index: int
    content_block: Block


class TextDelta(Told):
    """More text."""

    type: Literal["text_delta"]
    text: str


class ThinkingDelta(Told):
    """More of what the model wrote for itself."""

    type: Literal["thinking_delta"]
    thinking: str


class InputDelta(Told):
    """More of the JSON of a call's arguments."""

    type: Literal["input_json_delta"]
    partial_json: str


class SignatureDelta(Told):
    """The end of thinking."""

    type: Literal["signature_delta"]
    signature: str


class BlockDelta(NamedEvent):
    """A block grows."""

    type: Literal["content_block_delta"]
    index: int
    delta: TextDelta | ThinkingDelta | InputDelta | SignatureDelta


class BlockStop(NamedEvent):
    """A block ends."""

    type: Literal["content_block_stop"]
    index: int


class MessageEnd(Told):
    """Why an answer ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(NamedEvent):
    """The answer ends."""

    type: Literal["message_delta"]
    delta: MessageEnd
    usage: MessageUsage


class MessageStop(NamedEvent):
    """The last event of a stream."""

    type: Literal["message_stop"]


class Ping(NamedEvent):
    """Nothing has happened yet."""

    type: Literal["ping"]

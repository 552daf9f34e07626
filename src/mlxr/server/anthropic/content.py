"""Messages as Anthropic's API has them: blocks of text, thinking, tool calls and their results."""

from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from mlxr.server.fields import BY_TYPE, TEXT_OR_LIST, ApiModel, WithoutEffect, known_types

_TEXT_ONLY = "this server takes text, and has no tools of its own"


class TextBlock(ApiModel):
    """Text."""

    type: Literal["text"]
    text: str
    cache_control: WithoutEffect = None
    citations: WithoutEffect = None


class ThinkingBlock(ApiModel):
    """What the assistant has thought; this server gives it an empty signature, and checks none."""

    type: Literal["thinking"]
    thinking: str
    signature: WithoutEffect = None


class RedactedThinkingBlock(ApiModel):
    """Thinking that only the server that made it can read: nothing is made of it here."""

    type: Literal["redacted_thinking"]
    data: WithoutEffect = None


class ToolUseBlock(ApiModel):
    """A call of a tool by the assistant."""

    type: Literal["tool_use"]
    id: str = Field(min_length=1)
    name: str
    input: dict[str, Any]
    cache_control: WithoutEffect = None
    caller: WithoutEffect = None
    toolset_name: WithoutEffect = None


Texts = (
    Annotated[str, Tag("str")]
    | Annotated[
        list[Annotated[TextBlock, known_types("text", instead=_TEXT_ONLY)]],
        Tag("[list]"),
    ]
)
"""Text, or blocks of it."""


class ToolResultBlock(ApiModel):
    """What a tool has answered."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[Texts, TEXT_OR_LIST] | None = None
    is_error: bool | None = None
    cache_control: WithoutEffect = None
    toolset_name: WithoutEffect = None


Block = Annotated[
    Annotated[TextBlock, Tag("[text]")]
    | Annotated[ThinkingBlock, Tag("[thinking]")]
    | Annotated[RedactedThinkingBlock, Tag("[redacted_thinking]")]
    | Annotated[ToolUseBlock, Tag("[tool_use]")]
    | Annotated[ToolResultBlock, Tag("[tool_result]")],
    BY_TYPE,
    known_types("text", "thinking", "redacted_thinking", "tool_use", "tool_result", instead=_TEXT_ONLY),
]


class Message(ApiModel):
    """A message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Annotated[str, Tag("str")] | Annotated[list[Block], Tag("[list]")],
        TEXT_OR_LIST,
    ]


def text_of(content: str | list[TextBlock] | None) -> str:
    """The text of blocks, each on a line of its own."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(block.text for block in content)

"""Messages as Anthropic's API has them: blocks of text, thinking, tool calls and their results."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from mlxr.server.anthropic.tools import ToolAddition, ToolRemoval
from mlxr.server.fields import BY_TYPE, TEXT_OR_LIST, ApiModel, WithoutEffect, known_types

_TEXT_ONLY = "this server takes text only"


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
    """Thinking that only the server that made it can read: it is ignored here."""

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


class PlainText(ApiModel):
    """The text of a document."""

    type: Literal["text"]
    media_type: Literal["text/plain"] = "text/plain"
    data: str


Texts = (
    Annotated[str, Tag("str")]
    | Annotated[
        list[Annotated[TextBlock, known_types("text", instead=_TEXT_ONLY)]],
        Tag("[list]"),
    ]
)
"""Text, or blocks of it."""


class BlocksOfText(ApiModel):
    """The text of a document, in blocks."""

    type: Literal["content"]
    content: Annotated[Texts, TEXT_OR_LIST]


class DocumentBlock(ApiModel):
    """A document, of which only the text is taken."""

    type: Literal["document"]
    source: Annotated[
        Annotated[PlainText, Tag("[text]")] | Annotated[BlocksOfText, Tag("[content]")],
        BY_TYPE,
        known_types("text", "content", instead=_TEXT_ONLY),
    ]
    title: str | None = None
    context: str | None = None
    citations: WithoutEffect = None
    cache_control: WithoutEffect = None


class SearchResultBlock(ApiModel):
    """What a search of the client's has found."""

    type: Literal["search_result"]
    source: str
    title: str
    content: list[Annotated[TextBlock, known_types("text", instead=_TEXT_ONLY)]]
    citations: WithoutEffect = None
    cache_control: WithoutEffect = None


class ToolReferenceBlock(ApiModel):
    """A tool that a search of the client's has found; the model is told of it from now on."""

    type: Literal["tool_reference"]
    tool_name: str
    cache_control: WithoutEffect = None


Told = TextBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock
_ToldBlock = Annotated[
    Annotated[TextBlock, Tag("[text]")]
    | Annotated[DocumentBlock, Tag("[document]")]
    | Annotated[SearchResultBlock, Tag("[search_result]")]
    | Annotated[ToolReferenceBlock, Tag("[tool_reference]")],
    BY_TYPE,
    known_types("text", "document", "search_result", "tool_reference", instead=_TEXT_ONLY),
]


class ToolResultBlock(ApiModel):
    """What a tool has answered."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: (
        Annotated[
            Annotated[str, Tag("str")] | Annotated[list[_ToldBlock], Tag("[list]")],
            TEXT_OR_LIST,
        ]
        | None
    ) = None
    is_error: bool | None = None
    cache_control: WithoutEffect = None
    toolset_name: WithoutEffect = None


Block = Annotated[
    Annotated[TextBlock, Tag("[text]")]
    | Annotated[DocumentBlock, Tag("[document]")]
    | Annotated[SearchResultBlock, Tag("[search_result]")]
    | Annotated[ThinkingBlock, Tag("[thinking]")]
    | Annotated[RedactedThinkingBlock, Tag("[redacted_thinking]")]
    | Annotated[ToolUseBlock, Tag("[tool_use]")]
    | Annotated[ToolResultBlock, Tag("[tool_result]")]
    | Annotated[ToolAddition, Tag("[tool_addition]")]
    | Annotated[ToolRemoval, Tag("[tool_removal]")],
    BY_TYPE,
    known_types(
        "text",
        "document",
        "search_result",
        "thinking",
        "redacted_thinking",
        "tool_use",
        "tool_result",
        "tool_addition",
        "tool_removal",
        instead=_TEXT_ONLY,
    ),
]


class Message(ApiModel):
    """A message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Annotated[str, Tag("str")] | Annotated[list[Block], Tag("[list]")],
        TEXT_OR_LIST,
    ]


def text_of(content: str | Sequence[Told] | None) -> str:
    """The text of blocks, each on a line of its own."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(block_text(block) for block in content)


def block_text(block: Told) -> str:
    """The text of a block: of a document or a result of a search, what it is called stands above it."""
    if isinstance(block, TextBlock):
        return block.text
    if isinstance(block, ToolReferenceBlock):
        return f"{block.tool_name} is among the tools now."
    if isinstance(block, SearchResultBlock):
        return "\n".join([block.title, block.source, text_of(block.content)])
    source = block.source
    parts = [block.title, block.context, source.data if isinstance(source, PlainText) else text_of(source.content)]
    return "\n".join(part for part in parts if part)

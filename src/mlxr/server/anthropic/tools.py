"""Tools of Anthropic's API: a client's own, those that clients name by a type alone, and those that a service runs."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from mlxr.server.anthropic.content import Message, ToolReferenceBlock, ToolResultBlock, ToolUseBlock
from mlxr.server.anthropic.known_tools import KNOWN_TOOLS
from mlxr.server.fields import ApiModel, WithoutEffect, known_types
from mlxr.server.request_record import note_left_out, note_warning

_SEARCHES = "tool_search_tool_"
_HOSTED = ("web_search_", "web_fetch_", "code_execution_", "advisor_", "mcp_toolset", _SEARCHES)
"""How types of tools begin that Anthropic's own service runs."""
_SEEING = ("computer_", "browser_toolset_")
"""How types of tools begin whose results are images."""
_INSTEAD = "this server has no tools of its own, give a name and an input_schema"


class _AnyTool(ApiModel):
    """What all tools that the client runs have."""

    name: str = Field(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.\-]+$")
    strict: bool | None = None
    defer_loading: bool | None = None
    """The model is not told of it until a tool's result has a `tool_reference` to it."""
    input_examples: list[dict[str, Any]] | None = None
    allowed_callers: list[str] | None = None
    cache_control: WithoutEffect = None


class Tool(_AnyTool):
    """A tool of the client's own."""

    type: Literal["custom"] | None = None
    description: str | None = None
    input_schema: dict[str, Any]
    eager_input_streaming: WithoutEffect = None


class KnownTool(_AnyTool):
    """A tool that the client runs, and whose input is known by its type."""

    type: str
    max_characters: WithoutEffect = None
    """How much of a file the client shows."""


class HostedTool(ApiModel):
    """A tool that a service runs, or one that answers with images: it is left out, whatever it says."""

    model_config = ConfigDict(extra="allow")

    type: str
    name: str = ""


def _kind(value: object) -> str:
    """Which of these a tool is, as the tag of its class."""
    told = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if isinstance(told, str) and told.startswith(_HOSTED + _SEEING):
        return "[hosted]"
    return "[known]" if isinstance(told, str) and told in KNOWN_TOOLS else "[custom]"


AnyTool = Annotated[
    Annotated[Tool, known_types("custom", *KNOWN_TOOLS, instead=_INSTEAD, default="custom"), Tag("[custom]")]
    | Annotated[KnownTool, Tag("[known]")]
    | Annotated[HostedTool, Tag("[hosted]")],
    Discriminator(_kind),
]
"""A tool of a request."""


def given_tools(tools: Sequence[Tool | KnownTool | HostedTool], messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The tools that the model is told of, in OpenAI's form. Warns of what is left out.

    Args:
        tools: of the request.
        messages: those whose tools are called, or referred to, are told though they are deferred. They come last, so
            that what comes before them stays in the prefix cache.
    """
    first: list[dict[str, Any]] = []
    later: list[dict[str, Any]] = []
    wanted = _mentioned(messages)
    is_searched = any(isinstance(tool, HostedTool) and tool.type.startswith(_SEARCHES) for tool in tools)
    for place, tool in enumerate(tools):
        where = f"tools[{place}]"
        if isinstance(tool, HostedTool):
            _leave_out(where, tool.type)
            continue
        if tool.allowed_callers and "direct" not in tool.allowed_callers:
            note_warning(f"{where}.allowed_callers is without effect: the model itself calls all tools here")
        if not tool.defer_loading:
            first.append(_told(tool))
        elif is_searched:
            note_warning(f"{where}.defer_loading is without effect: nothing searches tools here, so it is told at once")
            first.append(_told(tool))
        elif tool.name in wanted:
            later.append(_told(tool))
    return first + later


def _leave_out(where: str, kind: str) -> None:
    if kind.startswith(_SEEING):
        note_warning(f"{where} is left out: {kind} answers with images, and this server takes text only")
    else:
        note_left_out(where, kind)


def _mentioned(messages: Sequence[Message]) -> set[str]:
    """The names of the tools that were called, or found by a search of the client's."""
    names = set()
    for message in messages:
        for block in message.content if isinstance(message.content, list) else ():
            if isinstance(block, ToolUseBlock):
                names.add(block.name)
            elif isinstance(block, ToolResultBlock) and isinstance(block.content, list):
                names |= {part.tool_name for part in block.content if isinstance(part, ToolReferenceBlock)}
    return names


def _told(tool: Tool | KnownTool) -> dict[str, Any]:
    if isinstance(tool, Tool):
        description, schema = tool.description, tool.input_schema
    else:
        description, schema = KNOWN_TOOLS[tool.type]
    if tool.input_examples:
        examples = "\n".join(json.dumps(example, ensure_ascii=False) for example in tool.input_examples)
        description = f"{description or ''}\n\nExamples of its input:\n{examples}".lstrip()
    function: dict[str, Any] = {"name": tool.name, "parameters": schema}
    if description is not None:
        function["description"] = description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}

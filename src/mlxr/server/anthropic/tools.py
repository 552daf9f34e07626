"""Tools of Anthropic's API: a client's own, those that clients name by a type alone, and those that a service runs."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from mlxr.server.anthropic.known_tools import KNOWN_TOOLS
from mlxr.server.fields import BY_TYPE, ApiModel, WithoutEffect, known_types

SEARCHES = "tool_search_tool_"
"""How types of tools begin that find other tools."""
_HOSTED = ("web_search_", "web_fetch_", "code_execution_", "advisor_", "mcp_toolset", SEARCHES)
"""How types of tools begin that Anthropic's own service runs."""
SEEING = ("computer_", "browser_toolset_")
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
    if isinstance(told, str) and told.startswith(_HOSTED + SEEING):
        return "[hosted]"
    return "[known]" if isinstance(told, str) and told in KNOWN_TOOLS else "[custom]"


AnyTool = Annotated[
    Annotated[Tool, known_types("custom", *KNOWN_TOOLS, instead=_INSTEAD, default="custom"), Tag("[custom]")]
    | Annotated[KnownTool, Tag("[known]")]
    | Annotated[HostedTool, Tag("[hosted]")],
    Discriminator(_kind),
]
"""A tool of a request."""


class ToolReference(ApiModel):
    """A tool by the name that the model calls."""

    type: Literal["tool_reference"]
    name: str


class ToolDefinition(ApiModel):
    """A tool that the request's `tools` do not have."""

    type: Literal["tool_definition"]
    definition: AnyTool


class ToolAddition(ApiModel):
    """The model is told of a tool from now on."""

    type: Literal["tool_addition"]
    tool: Annotated[
        Annotated[ToolReference, Tag("[tool_reference]")] | Annotated[ToolDefinition, Tag("[tool_definition]")],
        BY_TYPE,
        known_types("tool_reference", "tool_definition", instead=_INSTEAD),
    ]
    cache_control: WithoutEffect = None


class ToolRemoval(ApiModel):
    """The model may no longer call a tool."""

    type: Literal["tool_removal"]
    tool: Annotated[ToolReference, known_types("tool_reference", instead="only the client's own tools are here")]
    cache_control: WithoutEffect = None

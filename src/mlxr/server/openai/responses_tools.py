"""The tools of /v1/responses as requests give them: those that the client runs, and those that a service would."""

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from mlxr.server.errors import quoted_json
from mlxr.server.fields import BY_TYPE, ApiModel, WithoutEffect, known_types
from mlxr.server.openai.client_tool import FUNCTIONS, ClientTool, Kind
from mlxr.server.openai.lark_pattern import lark_pattern
from mlxr.server.request_record import note_left_out, note_warning

_NAME = r"^[a-zA-Z0-9_.\-]+$"
_HOSTED = re.compile(
    r"(web_search|web_search_preview)(_20\d\d_\d\d_\d\d)?|file_search|code_interpreter|image_generation|mcp|"
    r"programmatic_tool_calling"
)
"""Types of tools that a service runs."""
_OWN: tuple[Kind, ...] = ("local_shell", "apply_patch")
_CLIENT = ("function", "custom", "namespace", "shell", "tool_search", *_OWN)


def at_once(value: bool | None) -> bool | None:
    """Refuses tools that the model shall not know before they are searched for."""
    if value:
        raise ValueError("it is true, and this server searches no tools: give only those that the model shall know")
    return value


def _direct(value: list[str] | None) -> list[str] | None:
    if value and "direct" not in value:
        raise ValueError("it lacks direct: only the model itself calls tools here")
    return value


def _waited_for(value: bool | None) -> bool | None:
    if value:
        raise ValueError("it is true, and answers wait for no tool here: leave it out")
    return value


class _Offered(ApiModel):
    """What functions and custom tools have in common."""

    name: str = Field(min_length=1, max_length=128, pattern=_NAME)
    description: str | None = None
    defer_loading: Annotated[bool | None, AfterValidator(at_once)] = None
    allowed_callers: Annotated[list[str] | None, AfterValidator(_direct)] = None
    async_: Annotated[bool | None, AfterValidator(_waited_for)] = Field(None, alias="async")


class FunctionTool(_Offered):
    """A function that the model may call."""

    type: Literal["function"]
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    output_schema: WithoutEffect = None


class AnyText(ApiModel):
    """The input of a custom tool may be any text."""

    type: Literal["text"]


class ToolGrammar(ApiModel):
    """The input of a custom tool follows a grammar."""

    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: str = Field(max_length=1 << 16)


class CustomTool(_Offered):
    """A tool whose input is text."""

    type: Literal["custom"]
    format: (
        Annotated[
            Annotated[AnyText, Tag("[text]")] | Annotated[ToolGrammar, Tag("[grammar]")],
            BY_TYPE,
            known_types("text", "grammar", instead="choose one of these"),
        ]
        | None
    ) = None


class Namespace(ApiModel):
    """Tools whose names are told apart from others by the name of their group."""

    type: Literal["namespace"]
    name: str = Field(min_length=1, max_length=128, pattern=_NAME)
    description: str | None = None
    tools: list[
        Annotated[
            Annotated[FunctionTool, Tag("[function]")] | Annotated[CustomTool, Tag("[custom]")],
            BY_TYPE,
            known_types("function", "custom", instead="these are what a namespace may have"),
        ]
    ] = Field(max_length=1024)


class Skill(ApiModel):
    """Instructions for some task, in a folder of the client's."""

    name: str
    description: str
    path: str


class LocalEnvironment(ApiModel):
    """The client's own machine."""

    type: Literal["local"]
    skills: list[Skill] | None = None


class ShellTool(ApiModel):
    """A shell of the client's."""

    type: Literal["shell"]
    environment: LocalEnvironment | None = None
    allowed_callers: Annotated[list[str] | None, AfterValidator(_direct)] = None


class SearchTool(ApiModel):
    """A search for further tools, which the client does."""

    type: Literal["tool_search"]
    execution: Literal["client"]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OwnTool(ApiModel):
    """A tool whose shape is known."""

    type: Literal["local_shell", "apply_patch"]
    allowed_callers: Annotated[list[str] | None, AfterValidator(_direct)] = None


class HostedTool(ApiModel):
    """A tool that a service runs; its options are of no interest."""

    model_config = ConfigDict(extra="allow")

    type: str


def _branch(tool: Any) -> str:
    if isinstance(tool, ApiModel):
        tool = tool.model_dump()
    kind = tool.get("type")
    if is_hosted(tool):
        return "[hosted]"
    return "[own]" if kind in _OWN else f"[{kind}]"


def is_hosted(tool: dict[str, Any]) -> bool:
    """Whether a service runs a tool."""
    environment = tool.get("environment")
    place = environment.get("type") if isinstance(environment, dict) else None
    match tool.get("type"):
        case "shell":
            return isinstance(place, str) and place.startswith("container")
        case "tool_search":
            return tool.get("execution") != "client"
        case kind:
            return isinstance(kind, str) and _HOSTED.fullmatch(kind) is not None


def _known(tool: Any) -> Any:
    if isinstance(tool, ApiModel):
        return tool
    if not isinstance(tool, dict):
        raise ValueError(f"expected an object with the type {' or '.join(_CLIENT)}")
    kind = tool.get("type")
    if kind in _CLIENT or is_hosted(tool):
        return tool
    what = "screens are images, and this server takes text only" if "computer" in str(kind) else "use one of these"
    raise ValueError(f"type is {quoted_json(kind)}, which is not supported here, but {', '.join(_CLIENT)}: {what}")


Tool = Annotated[
    Annotated[FunctionTool, Tag("[function]")]
    | Annotated[CustomTool, Tag("[custom]")]
    | Annotated[Namespace, Tag("[namespace]")]
    | Annotated[ShellTool, Tag("[shell]")]
    | Annotated[SearchTool, Tag("[tool_search]")]
    | Annotated[OwnTool, Tag("[own]")]
    | Annotated[HostedTool, Tag("[hosted]")],
    Discriminator(_branch),
    BeforeValidator(_known),
]


def without_deferring(tools: Any) -> Any:
    """Tools that a search has found: that they were not to be told before is over."""
    if not isinstance(tools, list):
        return tools
    return [_told_now(tool) if isinstance(tool, dict) else tool for tool in tools]


def _told_now(tool: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in tool.items() if name != "defer_loading"}
    return kept | ({"tools": without_deferring(kept["tools"])} if "tools" in kept else {})


def client_tools(tools: Iterable[Any], place: str) -> Iterator[ClientTool]:
    """The tools that the client runs. Those of services are left out, with a warning.

    Args:
        tools: of a request.
        place: where it has them, as `tools`.
    """
    for number, tool in enumerate(tools):
        match tool:
            case HostedTool():
                note_left_out(f"{place}[{number}]", tool.type)
            case Namespace():
                for index, inner in enumerate(tool.tools):
                    description = inner.description or ""
                    if index == 0 and tool.description:  # of the group: models see it once
                        description = f"{tool.name}: {tool.description}\n{description}".strip()
                    yield _offered(inner, description, tool.name)
            case FunctionTool() | CustomTool():
                yield _offered(tool, tool.description or "")
            case ShellTool():
                yield ClientTool("shell", "shell", _with_skills(tool))
            case SearchTool():
                given = {"description": tool.description, "parameters": tool.parameters, "strict": None}
                own = {} if tool.parameters is None else {"strict": None}
                told = {name: value for name, value in given.items() if value is not None} | own
                yield ClientTool("tool_search", "tool_search", FUNCTIONS["tool_search"] | told)
            case OwnTool():
                yield ClientTool(tool.type, tool.type, FUNCTIONS[tool.type])


def _offered(tool: FunctionTool | CustomTool, description: str, namespace: str = "") -> ClientTool:
    if isinstance(tool, FunctionTool):
        function = {"description": description, "parameters": tool.parameters, "strict": tool.strict}
        given = {name: value for name, value in function.items() if value not in (None, "")}
        return ClientTool("function", tool.name, given, namespace)
    text: dict[str, Any] = {"type": "string", "description": "The text, as it is."}
    is_strict = isinstance(tool.format, ToolGrammar)
    if isinstance(tool.format, ToolGrammar):
        text["description"] = f"Text that follows this {tool.format.syntax} grammar:\n{tool.format.definition.strip()}"
        pattern = _pattern(tool.format)
        if pattern is None:
            why = "its rules are recursive, or have what no regular expression can say"
            note_warning(f"the grammar of the tool {tool.name} is told to the model, and not enforced: {why}")
            is_strict = False
        else:
            text["pattern"] = pattern
    parameters = {"type": "object", "properties": {"input": text}, "required": ["input"], "additionalProperties": False}
    function = {"description": description, "parameters": parameters, "strict": is_strict}
    return ClientTool("custom", tool.name, function, namespace)


def _pattern(grammar: ToolGrammar) -> str | None:
    """An expression of all texts of a grammar."""
    pattern = grammar.definition if grammar.syntax == "regex" else lark_pattern(grammar.definition)
    return None if pattern is None else f"^(?:{pattern})$"


def _with_skills(tool: ShellTool) -> dict[str, Any]:
    function = FUNCTIONS["shell"]
    skills = [] if tool.environment is None else tool.environment.skills or []
    if not skills:
        return function
    told = "\n".join(f"{skill.name} ({skill.path}): {skill.description}" for skill in skills)
    return function | {"description": f"{function['description']}\nSkills, each a folder with instructions:\n{told}"}

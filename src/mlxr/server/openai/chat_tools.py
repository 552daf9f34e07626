"""The tools of /v1/chat/completions: functions, custom tools with free text, and those that a service would run."""

from collections.abc import Iterator, Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from mlxr.server.chat.delta import Delta, ToolArguments, ToolStart
from mlxr.server.documents.json_form import json_form, json_text
from mlxr.server.documents.openai_answers import Custom as CustomTold
from mlxr.server.documents.openai_answers import Function as FunctionTold
from mlxr.server.documents.openai_answers import ToolCall as ToolCallTold
from mlxr.server.documents.openai_chunks import CallDelta, ChatDelta, CustomDelta
from mlxr.server.errors import ApiError, quoted_json
from mlxr.server.fields import BY_TYPE, ApiModel, WithoutEffect, known_types, type_of
from mlxr.server.openai.client_tool import ToolKit
from mlxr.server.openai.free_text import FreeText
from mlxr.server.openai.responses_tools import AnyText, HostedTool, at_once, client_tools, is_hosted
from mlxr.server.openai.responses_tools import CustomTool as CustomOfResponses
from mlxr.server.openai.responses_tools import FunctionTool as FunctionOfResponses

_NAME = r"^[a-zA-Z0-9_.\-]+$"


class Function(ApiModel):
    """A function that the model may call."""

    name: str = Field(min_length=1, max_length=64, pattern=_NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(ApiModel):
    """A function."""

    type: Literal["function"]
    function: Function
    defer_loading: Annotated[bool | None, AfterValidator(at_once)] = None
    cache_control: WithoutEffect = None


class GrammarFormat(ApiModel):
    """The grammar of a custom tool's text."""

    type: Literal["grammar"]
    grammar: "GrammarText"


class GrammarText(ApiModel):
    """A grammar."""

    syntax: Literal["lark", "regex"]
    definition: str = Field(max_length=1 << 16)


class Custom(ApiModel):
    """A tool whose input is text."""

    name: str = Field(min_length=1, max_length=64, pattern=_NAME)
    description: str | None = None
    format: (
        Annotated[
            Annotated[AnyText, Tag("[text]")] | Annotated[GrammarFormat, Tag("[grammar]")],
            BY_TYPE,
            known_types("text", "grammar", instead="choose one of these"),
        ]
        | None
    ) = None


class CustomTool(ApiModel):
    """A custom tool."""

    type: Literal["custom"]
    custom: Custom


def _known(tool: Any) -> Any:
    kind = type_of(tool)
    if isinstance(tool, dict) and kind not in ("function", "custom") and not is_hosted(tool):
        raise ValueError(
            f"type is {quoted_json(kind)}, which is not supported here, but function, custom: this server runs no tools"
        )
    return tool


Tool = Annotated[
    Annotated[FunctionTool, Tag("[function]")]
    | Annotated[CustomTool, Tag("[custom]")]
    | Annotated[HostedTool, Tag("[hosted]")],
    Discriminator(lambda tool: f"[{kind}]" if (kind := type_of(tool)) in ("function", "custom") else "[hosted]"),
    BeforeValidator(_known),
]


class CalledFunction(ApiModel):
    """A function that the assistant has called."""

    name: str
    arguments: str | dict[str, Any] | None = None


class CalledCustom(ApiModel):
    """A custom tool that the assistant has called."""

    name: str
    input: str


class ToolCall(ApiModel):
    """A call of a tool by the assistant."""

    id: str | None = None
    type: Literal["function", "custom"] | None = None
    function: CalledFunction | None = None
    custom: CalledCustom | None = None
    index: WithoutEffect = None

    def told(self, place: str) -> dict[str, Any]:
        """The call as chat templates read it: of a function.

        Args:
            place: of the call, for errors.

        Raises:
            ApiError: it says neither the function nor the custom tool.
        """
        if self.custom is not None:
            function: dict[str, Any] = {"name": self.custom.name, "arguments": {"input": self.custom.input}}
        elif self.function is not None:
            function = self.function.model_dump(exclude_none=True)
        else:
            name = f"{place}.function"
            raise ApiError(400, f"{name} is missing: it is required", param=name, code="missing_field")
        return {"type": "function", "function": function} | ({} if self.id is None else {"id": self.id})


def kit_of(tools: Sequence[FunctionTool | CustomTool | HostedTool] | None) -> ToolKit:
    """The tools that the model is told of."""
    return ToolKit(client_tools(map(_as_in_responses, tools or ()), "tools"))


def _as_in_responses(tool: FunctionTool | CustomTool | HostedTool) -> Any:
    if isinstance(tool, FunctionTool):
        return FunctionOfResponses(type="function", **tool.function.model_dump())
    if isinstance(tool, CustomTool):
        told, form = tool.custom.model_dump(exclude={"format"}), None
        if isinstance(tool.custom.format, GrammarFormat):
            form = {"type": "grammar", **tool.custom.format.grammar.model_dump()}
        return CustomOfResponses.model_validate({"type": "custom", **told, "format": form})
    return tool


def whole_call(kit: ToolKit, call_id: str, name: str, arguments: str) -> ToolCallTold:
    """A call in a whole answer."""
    if kit.find(name).kind == "custom":
        text = FreeText()
        text.push(arguments)
        text.finish()
        return ToolCallTold(id=call_id, type="custom", custom=CustomTold(name=name, input=text.text))
    return ToolCallTold(id=call_id, type="function", function=FunctionTold(name=name, arguments=arguments))


class CustomDeltas:
    """Calls of custom tools in the stream of one answer."""

    def __init__(self, kit: ToolKit) -> None:
        """Starts before the answer."""
        self._kit = kit
        self._texts: dict[int, FreeText] = {}

    def shown(self, delta: Delta) -> str | None:
        """The JSON of a delta of a custom tool's call, empty if it has nothing to say yet; None: of others."""
        if isinstance(delta, ToolStart) and self._kit.find(delta.name).kind == "custom":
            self._texts[delta.index] = FreeText()
            return _START(delta.index, quoted(delta.id), quoted(delta.name))
        if isinstance(delta, ToolArguments) and (text := self._texts.get(delta.index)) is not None:
            return _more(delta.index, text.push(delta.text))
        return None

    def rest(self) -> Iterator[str]:
        """The JSON of what is left to say at the end."""
        for index, text in self._texts.items():
            if more := text.finish():
                yield _MORE(index, quoted(more))


def _more(index: int, text: str) -> str:
    return _MORE(index, quoted(text)) if text else NO_DELTA


NO_DELTA = json_text(ChatDelta())
_START = json_form(
    ChatDelta(tool_calls=[CallDelta(index=0, id="", type="custom", custom=CustomDelta(name="", input=""))]),
    "index",
    "id",
    "name",
)
_MORE = json_form(ChatDelta(tool_calls=[CallDelta(index=0, custom=CustomDelta(input=""))]), "index", "input")

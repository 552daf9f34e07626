"""The items of /v1/responses as a conversation: messages, reasoning, calls of tools, and what these gave back."""

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Tag

from mlxr.server.errors import quoted_json
from mlxr.server.fields import ApiModel, WithoutEffect
from mlxr.server.openai.responses_calls import (
    CallItem,
    CustomCallItem,
    LocalShellCallItem,
    LocalShellOutputItem,
    OutputItem,
    PatchCallItem,
    PatchOutputItem,
    SearchCallItem,
    SearchOutputItem,
    ShellCallItem,
    ShellOutputItem,
)
from mlxr.server.openai.responses_text import Text, joined_text
from mlxr.server.openai.responses_tools import Tool
from mlxr.server.request_record import note_warning

_SEALED = "mlxr:"
_HOSTED = re.compile(
    r"web_search_call|image_generation_call|mcp_list_tools|mcp_approval_(?:request|response)|compaction"
)
"""Items that only the service understands that wrote them; they have no text for a model."""


class MessageItem(ApiModel):
    """A message, or an answer of before."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Text
    id: WithoutEffect = None
    status: WithoutEffect = None
    phase: WithoutEffect = None


class ReasoningText(ApiModel):
    """Text of reasoning."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(ApiModel):
    """What the assistant wrote for itself: as text, or as this server has sealed it; others' seals cannot be read."""

    type: Literal["reasoning"]
    content: list[ReasoningText] | None = None
    summary: list[ReasoningText] | None = None
    id: WithoutEffect = None
    status: WithoutEffect = None
    encrypted_content: str | None = None

    def text(self) -> str:
        """What it says."""
        if not self.content and (opened := opened_reasoning(self.encrypted_content)) is not None:
            return opened
        return "\n".join(thought.text for thought in self.content or self.summary or ())


class ToolsItem(ApiModel):
    """Tools that came in the midst of the conversation."""

    type: Literal["additional_tools"]
    role: Literal["developer"] = "developer"
    tools: list[Tool]
    id: WithoutEffect = None


class ReferenceItem(ApiModel):
    """An item of a response that is kept, by its name."""

    type: Literal["item_reference"]
    id: str


class HostedItem(ApiModel):
    """What a service did with a tool of its own."""

    model_config = ConfigDict(extra="allow")

    type: str


_TYPES = (
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "local_shell_call",
    "local_shell_call_output",
    "shell_call",
    "shell_call_output",
    "apply_patch_call",
    "apply_patch_call_output",
    "tool_search_call",
    "tool_search_output",
    "additional_tools",
    "item_reference",
)


def _kind(item: Any) -> Any:
    return item.get("type") if isinstance(item, dict) else getattr(item, "type", None)


def _is_hosted(item: Any) -> bool:
    kind = _kind(item)
    if isinstance(item, dict) and kind in ("tool_search_call", "tool_search_output"):
        return item.get("execution") == "server"
    return isinstance(item, HostedItem) or (isinstance(kind, str) and _HOSTED.fullmatch(kind) is not None)


def _branch(item: Any) -> str:
    kind = _kind(item)
    if _is_hosted(item):
        return "[hosted]"
    return "[function_call_output]" if kind == "custom_tool_call_output" else f"[{kind}]"


def _known(item: Any) -> Any:
    if isinstance(item, ApiModel):
        return item
    if not isinstance(item, dict):
        raise ValueError("expected an object with the type message or another one")
    if item.get("type") is None:
        item = item | {"type": "item_reference" if item.keys() - {"type"} == {"id"} else "message"}
    kind = item["type"]
    if kind in _TYPES or _is_hosted(item):
        return item
    raise ValueError(
        f"type is {quoted_json(kind)}, which is not supported here, but {', '.join(_TYPES)}: send the text itself"
    )


Item = Annotated[
    Annotated[MessageItem, Tag("[message]")]
    | Annotated[ReasoningItem, Tag("[reasoning]")]
    | Annotated[CallItem, Tag("[function_call]")]
    | Annotated[OutputItem, Tag("[function_call_output]")]
    | Annotated[CustomCallItem, Tag("[custom_tool_call]")]
    | Annotated[LocalShellCallItem, Tag("[local_shell_call]")]
    | Annotated[LocalShellOutputItem, Tag("[local_shell_call_output]")]
    | Annotated[ShellCallItem, Tag("[shell_call]")]
    | Annotated[ShellOutputItem, Tag("[shell_call_output]")]
    | Annotated[PatchCallItem, Tag("[apply_patch_call]")]
    | Annotated[PatchOutputItem, Tag("[apply_patch_call_output]")]
    | Annotated[SearchCallItem, Tag("[tool_search_call]")]
    | Annotated[SearchOutputItem, Tag("[tool_search_output]")]
    | Annotated[ToolsItem, Tag("[additional_tools]")]
    | Annotated[ReferenceItem, Tag("[item_reference]")]
    | Annotated[HostedItem, Tag("[hosted]")],
    Discriminator(_branch),
    BeforeValidator(_known),
]


def told_items(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Items as messages for chat templates: what the assistant thought, said and called in one turn is one message."""
    told: list[dict[str, Any]] = []
    shells: dict[str | None, str] = {}  # calls of the local shell, by their items
    for place, item in enumerate(items):
        last = told[-1] if told else {}
        match item:
            case MessageItem():
                role, content = item.role, joined_text(item.content)
                only_thought = last.keys() == {"role", "content", "reasoning_content"} and not last["content"]
                if role == "assistant" and only_thought:
                    last["content"] = content
                else:
                    told.append({"role": "system" if role == "developer" else role, "content": content})
            case ReasoningItem():
                if text := item.text():
                    told.append({"role": "assistant", "content": "", "reasoning_content": text})
                elif item.encrypted_content:
                    note_warning(f"input[{place}] is left out: it is reasoning that another service has encrypted")
            case HostedItem():
                note_warning(f"input[{place}] is left out: {item.type} is for the service that wrote it")
            case ToolsItem() | ReferenceItem():
                pass
            case LocalShellOutputItem():
                call_id = item.call_id or shells.get(item.id, item.id or "")
                told.append({"role": "tool", "tool_call_id": call_id, "content": item.text()})
            case OutputItem() | ShellOutputItem() | PatchOutputItem() | SearchOutputItem():
                told.append({"role": "tool", "tool_call_id": item.call_id, "content": item.text()})
            case _:
                if isinstance(item, LocalShellCallItem):
                    shells[item.id] = item.call_id
                if last.get("role") != "assistant":
                    last = {"role": "assistant", "content": ""}
                    told.append(last)
                name, arguments = item.told()
                function = {"name": name, "arguments": arguments}
                last.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})
    return told


def listed_items(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items as lists of them have them: each with a name, and messages with their parts."""
    listed = []
    for number, item in enumerate(items):
        told = {"id": f"item_{number}", "status": "completed"} | {k: v for k, v in item.items() if v is not None}
        if item["type"] == "message" and isinstance(item["content"], str):
            kind = "output_text" if item["role"] == "assistant" else "input_text"
            told["content"] = [{"type": kind, "text": item["content"]}]
        listed.append(told)
    return listed


def sealed_reasoning(text: str) -> str:
    """Reasoning for clients that keep only what they take for encrypted: it is the user's own, in base64."""
    return _SEALED + base64.b64encode(text.encode()).decode("ascii")


def opened_reasoning(sealed: str | None) -> str | None:
    """What `sealed_reasoning` was given; None if this is none of it."""
    if sealed is None or not sealed.startswith(_SEALED):
        return None
    try:
        return base64.b64decode(sealed.removeprefix(_SEALED), validate=True).decode()
    except (binascii.Error, ValueError):
        return None

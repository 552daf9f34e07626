"""The items of /v1/responses: messages, calls of functions, what these gave back, and reasoning."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from mlxr.server.fields import BY_TYPE, TEXT_OR_LIST, ApiModel, WithoutEffect, known_types

_TEXT_ONLY = "this server takes text only"


class InputText(ApiModel):
    """Text of a message."""

    type: Literal["input_text"]
    text: str
    prompt_cache_breakpoint: WithoutEffect = None


class OutputText(ApiModel):
    """Text of an answer."""

    type: Literal["output_text"]
    text: str
    annotations: WithoutEffect = None
    logprobs: WithoutEffect = None


class Refusal(ApiModel):
    """What the assistant said in place of an answer."""

    type: Literal["refusal"]
    refusal: str


Part = Annotated[
    Annotated[InputText, Tag("[input_text]")]
    | Annotated[OutputText, Tag("[output_text]")]
    | Annotated[Refusal, Tag("[refusal]")],
    BY_TYPE,
    known_types("input_text", "output_text", "refusal", instead=_TEXT_ONLY),
]
Text = Annotated[
    Annotated[str, Tag("str")] | Annotated[list[Part], Tag("[list]")],
    TEXT_OR_LIST,
]


class MessageItem(ApiModel):
    """A message, or an answer of before."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Text
    id: WithoutEffect = None
    status: WithoutEffect = None
    phase: WithoutEffect = None


class CallItem(ApiModel):
    """A call of a function by the assistant."""

    type: Literal["function_call"]
    call_id: str = Field(min_length=1)
    name: str
    arguments: str
    id: WithoutEffect = None
    status: WithoutEffect = None
    caller: WithoutEffect = None
    namespace: WithoutEffect = None
    async_: WithoutEffect = Field(None, alias="async")


class OutputItem(ApiModel):
    """What a function gave back."""

    type: Literal["function_call_output"]
    call_id: str
    output: Text
    id: WithoutEffect = None
    status: WithoutEffect = None
    name: str | None = None
    """Of the function; its call says it, too."""
    caller: WithoutEffect = None
    namespace: WithoutEffect = None


class Thought(ApiModel):
    """Text of reasoning."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(ApiModel):
    """What the assistant wrote for itself. Only text counts: there is nothing encrypted here."""

    type: Literal["reasoning"]
    content: list[Thought] | None = None
    summary: list[Thought] | None = None
    id: WithoutEffect = None
    status: WithoutEffect = None
    encrypted_content: WithoutEffect = None


Item = Annotated[
    Annotated[MessageItem, Tag("[message]")]
    | Annotated[CallItem, Tag("[function_call]")]
    | Annotated[OutputItem, Tag("[function_call_output]")]
    | Annotated[ReasoningItem, Tag("[reasoning]")],
    BY_TYPE,
    known_types(
        "message",
        "function_call",
        "function_call_output",
        "reasoning",
        instead="this server has no tools of its own and keeps no items",
        default="message",
    ),
]


def told_items(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Items as messages for chat templates: what the assistant thought, said and called in one turn is one message."""
    told: list[dict[str, Any]] = []
    for item in items:
        last = told[-1] if told else {}
        match item:
            case MessageItem():
                role, content = item.role, _text(item.content)
                only_thought = last.keys() == {"role", "content", "reasoning_content"} and not last["content"]
                if role == "assistant" and only_thought:
                    last["content"] = content
                else:
                    told.append({"role": "system" if role == "developer" else role, "content": content})
            case CallItem():
                if last.get("role") != "assistant":
                    last = {"role": "assistant", "content": ""}
                    told.append(last)
                function = {"name": item.name, "arguments": item.arguments}
                last.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})
            case OutputItem():
                told.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})
            case ReasoningItem():
                if text := "\n".join(thought.text for thought in item.content or item.summary or ()):
                    told.append({"role": "assistant", "content": "", "reasoning_content": text})
    return told


def _text(content: str | list[InputText | OutputText | Refusal]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.refusal if isinstance(part, Refusal) else part.text for part in content)

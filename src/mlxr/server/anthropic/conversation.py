"""From Anthropic's messages to a `ChatJob`."""

from typing import Any

from mlxr.runtime.engine.sampling import Sampling
from mlxr.server.anthropic.content import (
    DocumentBlock,
    Message,
    RedactedThinkingBlock,
    SearchResultBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    block_text,
    text_of,
)
from mlxr.server.anthropic.given_tools import given_tools
from mlxr.server.anthropic.messages_request import (
    AnyChoice,
    CountTokensRequest,
    MessagesRequest,
    NamedChoice,
    NoChoice,
    ThinkingOff,
)
from mlxr.server.anthropic.tools import ToolAddition, ToolRemoval
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.errors import bad_field
from mlxr.server.openai.sampling_fields import check_schema, seed_of, share_of


def job_of(request: CountTokensRequest) -> ChatJob:
    """The conversation of a request.

    Raises:
        ApiError: fields that contradict each other.
        RequestError: a value outside its range.
    """
    tools = tuple(given_tools(request.tools or (), request.messages))
    choice = request.tool_choice
    if isinstance(choice, NamedChoice | AnyChoice) and request.tools and not tools:
        raise bad_field("tool_choice", "tool_choice wants a call, and none of these tools can be called here")
    if choice is not None and not isinstance(choice, NoChoice) and not request.tools:
        raise bad_field("tool_choice", "tool_choice needs tools: give tools, or leave it out")
    messages = _messages(request)
    return ChatJob(
        messages=messages,
        sampling=_sampling(request),
        tools=tools,
        tool_choice=_choice(choice) if tools else "none",
        parallel_tool_calls=not getattr(choice, "disable_parallel_tool_use", False),
        variables=_variables(request),
        thinking_budget=getattr(request.thinking, "budget_tokens", None),
        continue_final=messages[-1]["role"] == "assistant",
    )


def hides_thinking(request: CountTokensRequest) -> bool:
    """Whether the client wants no text of the model's thinking."""
    return getattr(request.thinking, "display", None) == "omitted"


def _sampling(request: CountTokensRequest) -> Sampling:
    output_format = request.output_format
    if request.output_config is not None and request.output_config.format is not None:
        output_format = request.output_config.format
    schema = None if output_format is None else output_format.schema_
    check_schema("output_config.format.schema", schema)
    if not isinstance(request, MessagesRequest):
        return Sampling(json_schema=schema)
    given = {
        "top_k": request.top_k,
        "top_p": share_of(request.top_p),
        "seed": seed_of(request.seed),
        "stop": request.stop_sequences,
        "json_schema": schema,
        "temperature": request.temperature,
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return Sampling.of_model(max_tokens=max(1, request.max_tokens), **options)


def _choice(choice: object) -> str:
    if isinstance(choice, NamedChoice):
        return f"function:{choice.name}"
    if isinstance(choice, AnyChoice):
        return "required"
    return "none" if isinstance(choice, NoChoice) else "auto"


def _variables(request: CountTokensRequest) -> dict[str, Any]:
    variables: dict[str, Any] = {}
    if request.thinking is not None:
        variables["enable_thinking"] = not isinstance(request.thinking, ThinkingOff)
    if request.output_config is not None and request.output_config.effort is not None:
        variables["reasoning_effort"] = request.output_config.effort
    return variables


def _messages(request: CountTokensRequest) -> tuple[dict[str, Any], ...]:
    told: list[dict[str, Any]] = []
    if system := text_of(request.system):
        told.append({"role": "system", "content": system})
    for place, message in enumerate(request.messages):
        for part in _parts(f"messages[{place}].content", message):
            if told and part["role"] == told[-1]["role"] in {"user", "assistant"}:
                _join(told[-1], part)  # Anthropic's API makes one turn of those that follow each other
            else:
                told.append(part)
    if not told:
        raise bad_field("messages", "messages say nothing: give text")
    if told[-1].get("tool_calls"):
        raise bad_field("messages", "the last message calls a tool: send the tool_result in a user message after it")
    return tuple(told)


def _parts(place: str, message: Message) -> list[dict[str, Any]]:
    """A message as chat templates read it: results of tools are messages of their own."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    parts: list[dict[str, Any]] = []
    own: dict[str, Any] | None = None
    for i, block in enumerate(message.content):
        if isinstance(block, ToolAddition | ToolRemoval):
            continue  # see `given_tools`
        if isinstance(block, ToolResultBlock):
            _check_role(f"{place}[{i}]", block.type, message.role, "user")
            content = text_of(block.content)
            content = f"Error: {content}" if block.is_error else content
            parts.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": content})
            own = None
            continue
        if own is None:
            own = {"role": message.role, "content": ""}
            parts.append(own)
        if isinstance(block, TextBlock | DocumentBlock | SearchResultBlock):
            _join(own, {"content": block_text(block)})
            continue
        _check_role(f"{place}[{i}]", block.type, message.role, "assistant")
        if isinstance(block, ToolUseBlock):
            function = {"name": block.name, "arguments": block.input}
            _join(own, {"tool_calls": [{"id": block.id, "type": "function", "function": function}]})
        elif isinstance(block, ThinkingBlock):
            _join(own, {"reasoning_content": block.thinking})
        else:
            assert isinstance(block, RedactedThinkingBlock), "there are no other blocks"
    if not message.content:
        raise bad_field(place, f"{place} is empty: give text, or leave the message out")
    return parts


def _check_role(place: str, kind: str, role: str, expected: str) -> None:
    if role != expected:
        raise bad_field(place, f"{place} is a {kind}, which belongs in messages of the role {expected}, not {role}")


def _join(message: dict[str, Any], more: dict[str, Any]) -> None:
    """Adds what more there is to a message: text on a line of its own."""
    for key in ("content", "reasoning_content"):
        if text := more.get(key):
            message[key] = f"{message[key]}\n{text}" if message.get(key) else text
    if calls := more.get("tool_calls"):
        message["tool_calls"] = [*message.get("tool_calls", ()), *calls]

"""The tools of a request that the model is told of."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from mlxr.server.anthropic.content import Block, Message, ToolReferenceBlock, ToolResultBlock, ToolUseBlock
from mlxr.server.anthropic.known_tools import KNOWN_TOOLS
from mlxr.server.anthropic.tools import (
    SEARCHES,
    SEEING,
    HostedTool,
    KnownTool,
    Tool,
    ToolAddition,
    ToolDefinition,
    ToolReference,
    ToolRemoval,
)
from mlxr.server.request_record import note_left_out, note_warning


def given_tools(tools: Sequence[Tool | KnownTool | HostedTool], messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The tools that the model is told of, in OpenAI's form. Warns of what is left out.

    Args:
        tools: of the request.
        messages: what they say of tools: those that they add, or find, or call though they are deferred, come last, so
            that what comes before them stays in the prefix cache; those that they remove are not told.
    """
    is_searched = any(isinstance(tool, HostedTool) and tool.type.startswith(SEARCHES) for tool in tools)
    first: dict[str, dict[str, Any]] = {}
    deferred: dict[str, dict[str, Any]] = {}
    for place, tool in enumerate(tools):
        where = f"tools[{place}]"
        if (told := _told(where, tool)) is None or isinstance(tool, HostedTool):
            continue
        if tool.defer_loading and is_searched:
            note_warning(
                f"{where}.defer_loading is without effect: nothing searches tools here, so the model sees it at once"
            )
        is_later = tool.defer_loading and not is_searched
        (deferred if is_later else first)[tool.name] = told
    known, later = first | deferred, dict[str, dict[str, Any]]()
    for where, block in _blocks(messages):
        names: list[str] = []
        if isinstance(block, ToolUseBlock):
            names = [block.name]
        elif isinstance(block, ToolResultBlock) and isinstance(block.content, list):
            names = [part.tool_name for part in block.content if isinstance(part, ToolReferenceBlock)]
        elif isinstance(block, ToolRemoval):
            first.pop(block.tool.name, None)
            later.pop(block.tool.name, None)
        elif isinstance(block, ToolAddition):
            names = [_added(f"{where}.tool.definition", block.tool, known)]
        for name in names:
            if name in known and name not in first and (name in deferred or not isinstance(block, ToolUseBlock)):
                later.setdefault(name, known[name])
    return [*first.values(), *later.values()]


def _added(where: str, tool: ToolReference | ToolDefinition, known: dict[str, dict[str, Any]]) -> str:
    """The name of a tool that a message adds; its definition becomes known."""
    if isinstance(tool, ToolReference):
        return tool.name
    if (told := _told(where, tool.definition)) is not None:
        known[tool.definition.name] = told
    return tool.definition.name


def _blocks(messages: Sequence[Message]) -> Iterator[tuple[str, Block]]:
    """All blocks, each with its place."""
    for i, message in enumerate(messages):
        for k, block in enumerate(message.content if isinstance(message.content, list) else ()):
            yield f"messages[{i}].content[{k}]", block


def _leave_out(where: str, kind: str) -> None:
    if kind.startswith(SEEING):
        note_warning(f"{where} is left out: {kind} answers with images, and this server takes text only")
    else:
        note_left_out(where, kind)


def _told(where: str, tool: Tool | KnownTool | HostedTool) -> dict[str, Any] | None:
    """A tool in OpenAI's form; None if it is left out."""
    if isinstance(tool, HostedTool):
        _leave_out(where, tool.type)
        return None
    if tool.allowed_callers and "direct" not in tool.allowed_callers:
        note_warning(f"{where}.allowed_callers is without effect: the model itself calls all tools here")
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

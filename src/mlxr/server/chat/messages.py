"""Checks the messages and tools of a job, and brings them into one form for templates."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mlxr.compiler.errors import RequestError
from mlxr.server.errors import quoted_json

_ROLES = ("system", "developer", "user", "assistant", "tool")
_INSTRUCTIONS = ("system", "developer")
_TEXT_PARTS = ("text", "input_text", "output_text")
_BILLING = "x-anthropic-billing-header:"
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")


def checked_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with text as `content` (empty if there is none), and the arguments of tool calls as dicts.

    Coding agents begin the system text with a line `x-anthropic-billing-header: ...` that is another one each time. It
    says nothing to the model, and no prompt would be found in the prefix cache: that line is dropped, and the message
    too if it has no other.

    Raises:
        RequestError: a message that cannot be used, and which one.
    """
    if not messages:
        raise RequestError("messages is empty; expected at least one message")
    checked: list[dict[str, Any]] = []
    open_calls: dict[str, str] = {}  # the tools' names by the ids of calls that nobody has answered yet
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if not isinstance(message, Mapping):
            raise RequestError(f"{where} is {quoted_json(message)}, expected an object with role and content")
        role = message.get("role")
        if role not in _ROLES:
            raise RequestError(f"{where}.role is {quoted_json(role)}; expected one of {', '.join(_ROLES)}")
        clean = dict(message) | {"content": _text(message.get("content"), f"{where}.content")}
        if number == 0 and role in _INSTRUCTIONS and clean["content"].startswith(_BILLING):
            clean["content"] = clean["content"].partition("\n")[2]
            if not clean["content"] and len(messages) > 1:
                continue
        for key in ("tool_calls", "reasoning_content"):
            if not clean.get(key):
                clean.pop(key, None)
        if not isinstance(clean.get("reasoning_content", ""), str):
            raise RequestError(f"{where}.reasoning_content is {quoted_json(clean['reasoning_content'])}; expected text")
        if "tool_calls" in clean:
            if role != "assistant":
                raise RequestError(
                    f"{where} has tool_calls, and its role is {role}: only assistant messages call tools"
                )
            clean["tool_calls"] = _calls(clean["tool_calls"], f"{where}.tool_calls")
            open_calls |= {call["id"]: call["function"]["name"] for call in clean["tool_calls"]}
        if role == "tool":
            call_id = clean.get("tool_call_id")
            if not isinstance(call_id, str) or call_id not in open_calls:
                said = "missing" if call_id is None else quoted_json(call_id)
                raise RequestError(
                    f"{where}.tool_call_id is {said}, and no call without an answer before it has that id: "
                    "give the id of a call in an assistant message's tool_calls"
                )
            clean["name"] = open_calls.pop(call_id)  # some templates ask for it
        checked.append(clean)
    return checked


def check_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    """Checks the tools of a job.

    Raises:
        RequestError: a tool that cannot be used, and which one.
    """
    names: set[str] = set()
    for number, tool in enumerate(tools):
        where = f"tools[{number}]"
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or tool.get("type") != "function":
            kind = tool.get("type") if isinstance(tool, Mapping) else tool
            raise RequestError(f"{where} is of type {quoted_json(kind)}; expected function, with a name and parameters")
        name, parameters = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
            raise RequestError(
                f"{where}.function.name is {quoted_json(name)}; expected 1 to 128 letters, digits, or any of _.-"
            )
        if name in names:
            raise RequestError(f"{where}.function.name is {name!r}, which another tool has: rename one")
        names.add(name)
        if parameters is not None and not _is_object_schema(parameters):
            raise RequestError(
                f"{where}.function.parameters is {quoted_json(parameters)}; expected a JSON schema of an object"
            )
        if not isinstance(function.get("description"), str | None):
            raise RequestError(f"{where}.function.description is {quoted_json(function['description'])}; expected text")
        if not isinstance(function.get("strict"), bool | None):
            raise RequestError(f"{where}.function.strict is {quoted_json(function['strict'])}; expected true or false")


def _is_object_schema(schema: Any) -> bool:
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        return False
    properties, required = schema.get("properties", {}), schema.get("required", [])
    return isinstance(properties, Mapping) and isinstance(required, list | tuple)


def plain_tools(tools: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The tools with what templates read of them, of which some need all."""
    plain = []
    for tool in tools:
        function = tool["function"]
        name, description = function["name"], function.get("description") or ""
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        function = {"name": name, "description": description, "parameters": parameters}
        plain.append({"type": "function", "function": function})
    return tuple(plain)


def described_tools(tools: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The same tools, in which each parameter has a description, if only an empty one."""
    described = []
    for tool in tools:
        function = tool["function"]
        parameters = function["parameters"]
        properties = {
            key: {"description": "", **schema} if isinstance(schema, Mapping) else schema
            for key, schema in (parameters.get("properties") or {}).items()
        }
        described.append({**tool, "function": {**function, "parameters": {**parameters, "properties": properties}}})
    return tuple(described)


def with_text_arguments(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same messages with the arguments of calls as JSON text, which some templates expect."""
    changed = []
    for message in messages:
        clean = dict(message)
        if "tool_calls" in clean:
            clean["tool_calls"] = [_with_text(call) for call in clean["tool_calls"]]
        changed.append(clean)
    return changed


def _with_text(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    text = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RequestError(f"{where} is {quoted_json(content)}; expected text, or a list of parts")
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if isinstance(part, Mapping) else None
        if kind not in _TEXT_PARTS:
            raise RequestError(
                f"{where}[{number}] is of type {quoted_json(kind)}, and this model reads text alone: leave it out"
            )
        if not isinstance(text, str):
            raise RequestError(f"{where}[{number}].text is {quoted_json(text)}; expected text")
        texts.append(text)
    return "\n".join(texts)


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise RequestError(f"{where} is {quoted_json(calls)}; expected a list of tool calls")
    checked = []
    for number, call in enumerate(calls):
        at = f"{where}[{number}]"
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RequestError(f"{at} is {quoted_json(call)}; expected an id, and a function with a name and arguments")
        if not isinstance(call.get("id"), str) or not call["id"]:
            raise RequestError(f"{at}.id is {quoted_json(call.get('id'))}; expected text, which tool messages refer to")
        arguments = _arguments(function.get("arguments"), f"{at}.function.arguments")
        function = {"name": function["name"], "arguments": arguments}
        checked.append({"id": call["id"], "type": "function", "function": function})
    return checked


def _arguments(arguments: Any, where: str) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{where} is not JSON: {error or 'it is nested too deeply'}") from error
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        raise RequestError(f"{where} is {quoted_json(arguments)}; expected a JSON object")
    return dict(arguments)

"""Brings messages into the form that a template takes; earlier calls become text where it leaves them out."""

import hashlib
import json
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlxr.server.chat.learned.answer_form import CallForm, MessageForm, Slot, Style
from mlxr.server.chat.messages import with_text_arguments
from mlxr.server.chat.split_messages import one_call_each, text_before_calls

_LETTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9
_RESULT = "<tool_response>\n{}\n</tool_response>"


def adapted(
    messages: Sequence[Mapping[str, Any]], form: MessageForm, written: Callable[[Mapping[str, Any]], str] | None = None
) -> list[dict[str, Any]]:
    """The messages, as a template takes them.

    Args:
        messages: which have been checked.
        form: what it takes.
        written: gives the text of a call, where calls become part of the content.
    """
    changed = [dict(message) for message in messages]
    if form.has_calls_as_text and written is not None:
        changed = [_with_written_calls(message, written) for message in changed]
    if form.is_text_apart:
        changed = text_before_calls(changed)
    if form.has_old_roles:
        return [_with_old_roles(message) for message in text_before_calls(changed)]
    if form.is_one_call_each:
        changed = one_call_each(changed)
    if form.has_short_ids:
        changed = [_with_short_ids(message) for message in changed]
    if form.has_results_as_user:
        changed = _with_results_of_user(changed)
    if form.has_thinking_parts:
        changed = [_with_thinking_part(message) for message in changed]
    if form.has_null_content:
        for message in changed:
            if message.get("tool_calls") and not message["content"]:
                message["content"] = None
    return with_text_arguments(changed) if form.has_text_arguments else changed


def tool_variables(tools: Sequence[Mapping[str, Any]], form: MessageForm) -> dict[str, Any]:
    """The variables that tell a template of tools; some read only what is inside of `function`."""
    if not form.tools:
        return {}
    return {form.tools: list(tools) if form.tools == "tools" else [tool["function"] for tool in tools]}


def short_id(call_id: str) -> str:
    """An id of nine letters and digits, always the same for the same one."""
    if len(call_id) == _ID_LENGTH and all(sign in _LETTERS for sign in call_id):
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).digest())
    return "".join(_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(_ID_LENGTH))


def _with_old_roles(message: dict[str, Any]) -> dict[str, Any]:
    """A message as the oldest of Mistral's templates take it."""
    if message.get("tool_calls"):
        calls = [call["function"] | {"id": short_id(call["id"])} for call in message["tool_calls"]]
        return {"role": "tool_calls", "content": json_text(calls)}
    if message["role"] == "tool":
        result = {"content": message["content"], "call_id": short_id(message["tool_call_id"])}
        return {"role": "tool_results", "content": json_text(result)}
    return message


def _with_short_ids(message: dict[str, Any]) -> dict[str, Any]:
    if message.get("tool_calls"):
        message["tool_calls"] = [call | {"id": short_id(call["id"])} for call in message["tool_calls"]]
    if "tool_call_id" in message:
        message["tool_call_id"] = short_id(message["tool_call_id"])
    return message


def _with_thinking_part(message: dict[str, Any]) -> dict[str, Any]:
    thought = message.get("reasoning_content")
    if thought:
        parts = [{"type": "thinking", "thinking": thought}]
        message["content"] = parts + ([{"type": "text", "text": message["content"]}] if message["content"] else [])
    return message


def _with_written_calls(message: dict[str, Any], written: Callable[[Mapping[str, Any]], str]) -> dict[str, Any]:
    if not message.get("tool_calls"):
        return message
    text = written(message)
    content = message["content"]
    bare = {key: value for key, value in message.items() if key != "tool_calls"}
    return bare | {"content": f"{content}\n{text}" if content else text}


def _with_results_of_user(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results as messages of the user, of which those that follow each other are one: many templates alternate."""
    changed: list[dict[str, Any]] = []
    for message in messages:
        is_result = message["role"] == "tool"
        content = _RESULT.format(message["content"]) if is_result else message["content"]
        follows = bool(changed) and changed[-1]["role"] == "user" and changed[-1].get("is_result", False)
        if follows and (is_result or message["role"] == "user"):
            changed[-1]["content"] += f"\n{content}"
        elif is_result:
            changed.append({"role": "user", "content": content, "is_result": True})
        else:
            changed.append(message)
    return [{key: value for key, value in message.items() if key != "is_result"} for message in changed]


def json_text(value: Any) -> str:
    """JSON, as models write it."""
    return json.dumps(value, ensure_ascii=False)


def written_calls(form: CallForm, message: Mapping[str, Any]) -> str:
    """The text of a message's calls, as a model would write it."""
    calls = message["tool_calls"]
    texts = [form.start + _body(form, number, call) + form.end for number, call in enumerate(calls)]
    return form.section_start + form.between.join(texts) + form.section_end


def _body(form: CallForm, number: int, call: Mapping[str, Any]) -> str:
    function = call["function"]
    slots = {
        Slot.NAME: function["name"],
        Slot.ID: call["id"],
        Slot.NUMBER: str(form.first_number + number),
        Slot.ARGUMENTS: _arguments(form, function["arguments"]),
    }
    return "".join(part if isinstance(part, str) else slots[part] for part in form.body)


def _arguments(form: CallForm, arguments: Mapping[str, Any]) -> str:
    if form.style is not Style.KEYED or form.argument is None:
        return json_text(arguments)
    argument, items = form.argument, []
    for key, value in arguments.items():
        end = "".join(key if part is Slot.KEY else str(part) for part in argument.end)
        is_raw = isinstance(value, str) and argument.quote is None
        items.append(f"{argument.start}{key}{argument.middle('string')}{value if is_raw else json_text(value)}{end}")
    return argument.between.join(items)

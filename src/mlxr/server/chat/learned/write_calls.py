"""Writes earlier calls as a model would, for templates that leave them out: they become part of the message's text."""

from collections.abc import Mapping
from typing import Any

from mlxr.server.chat.learned.adapt_messages import json_text
from mlxr.server.chat.learned.answer_form import CallForm, Slot, Style


def written_calls(form: CallForm, message: Mapping[str, Any]) -> str:
    """The text of a message's calls."""
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

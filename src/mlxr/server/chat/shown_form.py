"""The form of a model's answers, from its templates alone: what `mlxr show` and lists of models say of it."""

import json
from contextlib import closing
from dataclasses import asdict
from enum import Enum
from functools import lru_cache
from typing import Any

from mlxr.compiler.errors import ChatTemplateError
from mlxr.runtime.tokenizer.chat_template import ChatTemplate
from mlxr.runtime.tokenizer.template_files import NamedTemplates
from mlxr.server.chat.formats.family import TemplateFamily
from mlxr.server.chat.formats.registry import family_of
from mlxr.server.chat.learned.answer_form import ArgumentForm, CallForm, Slot, Style

_SHOWN = {
    Slot.NAME: "NAME",
    Slot.ID: "ID",
    Slot.NUMBER: "NUMBER",
    Slot.ARGUMENTS: "{ARGUMENTS}",
    Slot.KEY: "KEY",
}
_KEPT = 64


def form_lines(templates: NamedTemplates) -> list[tuple[str, str]]:
    """The form of a model's answers, as names and texts; texts of the model are JSON strings. Slow the first time."""
    family = family_of_templates(templates)
    if family is None:
        return [("calls", "not known: the chat template is faulty")]
    form = family.form
    lines = [("calls", f"{family.shown}, {form.origin.value}")]
    if family.is_described:
        lines += [("call", _text(_call(form.calls)))]
        if form.calls.section_start.strip():
            lines.append(("section", f"{_text(form.calls.section_start)} to {_text(form.calls.section_end)}"))
    if form.thought is not None:
        lines.append(("thought", f"{_text(form.thought.opening.strip())} to {_text(form.thought.end_marker)}"))
    if form.content_start.strip():
        end = f" to {_text(form.content_end)}" if form.content_end.strip() else ""
        lines.append(("text", f"{_text(form.content_start.strip())}{end}"))
    lines.append(("turn ends", _text(form.turn_end.strip()) if form.turn_end.strip() else "with the token of its end"))
    return lines


def form_as_json(templates: NamedTemplates) -> dict[str, Any] | None:
    """The form of a model's answers, all of it; None if the template is faulty. Slow the first time."""
    family = family_of_templates(templates)
    if family is None:
        return None
    shown: dict[str, Any] = _plain(asdict(family.form))
    return shown


def _call(calls: CallForm) -> str:
    """One call, with words in capitals for what differs."""
    body = [part if isinstance(part, str) else _SHOWN[part] for part in calls.body]
    if calls.style is Style.KEYED and calls.argument is not None:
        body[-1] = _argument(calls.argument)
    return calls.start + "".join(body) + calls.end


def _argument(argument: ArgumentForm) -> str:
    end = "".join(part if isinstance(part, str) else _SHOWN[part] for part in argument.end)
    opening, closing = argument.quote or ("", "")
    kind = "string" if "string" in dict(argument.middles) else argument.middles[0][0]
    return f"{argument.start}KEY{argument.middle(kind)}{opening}VALUE{closing}{end}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A value without what JSON does not have."""
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def family_of_templates(templates: NamedTemplates) -> TemplateFamily | None:
    """The family of a model's answers where tools are given; None if its template is faulty. Slow the first time."""
    return _family(templates.text, templates.tool_use)


@lru_cache(_KEPT)
def _family(text: str, tool_use: str | None) -> TemplateFamily | None:
    with closing(ChatTemplate(text, "the model", {"bos_token": "", "eos_token": ""}, tool_use=tool_use)) as template:
        needed: dict[str, Any] = {} if tool_use is None else {"tools": []}
        try:
            template.render([{"role": "user", "content": "Hi"}], **needed)
            return family_of(template, needed, {})
        except ChatTemplateError:
            return None

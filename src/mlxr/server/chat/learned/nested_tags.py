"""Values in values that are written as arguments are: `<a><item>1</item></a>`."""

import json
from typing import Any

from mlxr.server.chat.learned.answer_form import ArgumentForm, Slot
from mlxr.server.chat.learned.argument_schemas import kinds_of, may_be, part_of
from mlxr.server.chat.loose_value import as_json


def nested(text: str, form: ArgumentForm, schema: Any = None) -> Any:
    """The value of a text: an object or a list if it begins as an argument does, else a scalar, else text.

    Args:
        text: as it is written.
        form: of arguments.
        schema: of the value, if it is known.
    """
    kinds = kinds_of(schema)
    if kinds == {"string"}:
        return text
    if not kinds & {"any", "array", "object"} or not text.lstrip().startswith(form.start):
        if not text.strip() and kinds in ({"array"}, {"object"}):
            return [] if kinds == {"array"} else {}
        value = as_json(text)
        loaded = None if value is None else json.loads(value)
        return text if value is None or not may_be(loaded, schema) else loaded
    items: list[tuple[str, Any]] = []
    at = 0
    middle = form.middle("string")
    while (start := text.find(form.start, at)) >= 0:
        key_end = text.find(middle, start + len(form.start))
        if key_end < 0:
            break
        key = text[start + len(form.start) : key_end].strip()
        end_text = "".join(key if part is Slot.KEY else str(part) for part in form.end)
        inner = key_end + len(middle)
        end = _matching(text, inner, form.start + key + middle, end_text)
        items.append((key, nested(text[inner:end], form, part_of(schema, None if key == form.item else key))))
        at = end + len(end_text)
    if items and all(key == form.item for key, _ in items):
        return [value for _, value in items]
    return dict(items)


def _matching(text: str, at: int, start: str, end: str) -> int:
    """Where the end lies that belongs to a start before a place; the text's end if there is none."""
    depth = 1
    while True:
        close, begin = text.find(end, at), text.find(start, at)
        if close < 0:
            return len(text)
        if 0 <= begin < close:
            depth, at = depth + 1, begin + len(start)
            continue
        depth -= 1
        if depth == 0:
            return close
        at = close + len(end)

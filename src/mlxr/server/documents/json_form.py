"""The writers of answers: JSON of a document, and functions that write it with holes for what changes."""

import json
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, cast

from starlette.responses import JSONResponse

from mlxr.server.documents.answers import Told

Form = Callable[..., str]
"""From the JSON text of each hole, in order, to that of a document."""


def json_text(value: object) -> str:
    """The JSON text of a document, or of anything else, as short as it gets."""
    return json.dumps(value, separators=(",", ":"), default=_fields, check_circular=False)


def json_with(value: Told, **texts: str) -> str:
    """The JSON text of a document some of whose fields are written already.

    Args:
        value: the document.
        texts: the JSON of these fields, at any depth, in their order.

    Raises:
        ValueError: as for `json_form`.
    """
    first, *others = _parts(value, tuple(texts))
    return first + "".join(text + part for text, part in zip(texts.values(), others, strict=True))


def json_form(example: object, *holes: str, before: str = "", after: str = "") -> Form:
    """Writes documents that differ in some fields only, as those of a stream's tokens do.

    What a document is, its class says: names, types and the order of fields. The function is an f-string that is made
    of an example, as nothing else writes as fast.

    Args:
        example: one of the documents; fields that it was not given are left out.
        holes: names of the fields that change, at any depth, in their order.
        before: text before the document.
        after: text after it.

    Raises:
        ValueError: the document has other fields, or in another order.
    """
    first, *others = _parts(example, holes)
    parts = [before + first, *others]
    parts[-1] += after
    return _function(parts)


def json_form_in_two(
    example: Told, first: tuple[str, ...], then: tuple[str, ...], after: str = ""
) -> tuple[Form, Form]:
    """The same in two functions: of the text before the first of some holes, and of the whole, which takes that first.

    Args:
        example: as above.
        first: the holes of the first function.
        then: those of the second one, after the first text.
        after: text after the document.
    """
    parts = _parts(example, (*first, *then))
    parts[-1] += after
    return _function(parts[: len(first) + 1]), _function(["", *parts[len(first) + 1 :]], takes_first=True)


def _parts(example: object, holes: tuple[str, ...]) -> list[str]:
    """The text before, between and after the holes."""
    parts, found = [""], list[str]()
    _write(example, holes, parts, found)
    if tuple(found) != holes:
        raise ValueError(f"{type(example).__name__} has the holes {found}, not {list(holes)}")
    return parts


def _function(parts: list[str], takes_first: bool = False) -> Form:
    names = [f"hole{number}" for number in range(len(parts) - 1)]
    text = "{first}" if takes_first else ""
    for name, part in zip(["", *names], parts, strict=True):
        text += (f"{{{name}}}" if name else "") + part.replace("{", "{{").replace("}", "}}")
    arguments = ", ".join([*(["first"] if takes_first else []), *names])
    return cast(Form, eval(f"lambda {arguments}: f{text!r}", {}))


def _write(value: object, holes: tuple[str, ...], parts: list[str], found: list[str]) -> None:
    """Adds the text of a value to the last part, and begins another part after each hole."""
    if isinstance(value, Told) or is_dataclass(value):
        parts[-1] += "{"
        for number, (name, item) in enumerate(_fields(value).items()):
            parts[-1] += f'{"," if number else ""}"{name}":'
            if name in holes:
                found.append(name)
                parts.append("")
            else:
                _write(item, holes, parts, found)
        parts[-1] += "}"
    elif isinstance(value, list) and value:
        for number, item in enumerate(value):
            parts[-1] += "," if number else "["
            _write(item, holes, parts, found)
        parts[-1] += "]"
    else:
        parts[-1] += json_text(value)


def _fields(value: object) -> dict[str, Any]:
    """The fields of a document that are written."""
    if hasattr(value, "__dataclass_fields__"):  # of each token of an answer, and quicker than to ask for its class
        return vars(value)
    return value.fields() if isinstance(value, Told) else vars(value)


class JsonAnswer(JSONResponse):
    """A document as JSON."""

    def render(self, content: object) -> bytes:
        """The body."""
        return _finite_json(content, ascii_only=False).encode()


class EscapedJson(JSONResponse):
    """JSON whose other characters are escaped: what a client has sent and gets back may be no valid Unicode."""

    def render(self, content: object) -> bytes:
        """The body."""
        return _finite_json(content, ascii_only=True).encode("ascii")


def _finite_json(value: object, *, ascii_only: bool) -> str:
    return json.dumps(
        value,
        ensure_ascii=ascii_only,
        allow_nan=False,
        separators=(",", ":"),
        default=_fields,
        check_circular=False,  # a quarter of the time, and no answer holds itself
    )

"""Writers of answers' JSON: the fast one is a function that writes a document with holes for what changes."""

import json
from collections.abc import Callable
from typing import Any, cast

from starlette.responses import JSONResponse

from mlxr.server.documents.answers import Told

Form = Callable[..., str]
"""From the JSON text of each hole, in order, to that of a document."""


def json_form(example: Told, *holes: str) -> Form:
    """Writes documents that differ in some fields only, as those of a stream's tokens do.

    What a document is, its class says: names, types and the order of fields. The function is an f-string that is made
    of an example, as nothing else writes as fast.

    Args:
        example: one of the documents; fields that it was not given are left out.
        holes: names of the fields that change, at any depth, in their order.

    Raises:
        ValueError: the document has other fields, or in another order.
    """
    return _function(_parts(example, holes))


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


def _parts(example: Told, holes: tuple[str, ...]) -> list[str]:
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
    if isinstance(value, Told):
        lead = "{"
        for name in type(value).model_fields:
            if name in value.model_fields_set:
                parts[-1] += f'{lead}"{name}":'
                lead = ","
                if name in holes:
                    found.append(name)
                    parts.append("")
                else:
                    _write(getattr(value, name), holes, parts, found)
        parts[-1] += "{}" if lead == "{" else "}"
    elif isinstance(value, list) and value:
        for number, item in enumerate(value):
            parts[-1] += "," if number else "["
            _write(item, holes, parts, found)
        parts[-1] += "]"
    else:
        parts[-1] += dumped(value)


def dumped(value: Any) -> str:
    """The JSON text of a value, as short as it gets."""
    return json.dumps(value, separators=(",", ":"))


class EscapedJson(JSONResponse):
    """JSON whose other characters are escaped: what a client has sent and gets back may be no valid Unicode."""

    def render(self, content: Any) -> bytes:
        """The body."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")

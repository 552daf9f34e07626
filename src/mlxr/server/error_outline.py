"""What the log says of an error without quoting the request, which may have what users write."""

import re
from functools import cache

from mlxr.compiler.errors import MlxrError
from mlxr.server.errors import ApiError

_QUOTES = re.compile(r"""(?<!\w)['"`]|\n|#/""")
"""Where a message may begin to quote a value, another program's report, or a place in a schema."""
_PART = re.compile(r"\[\d+\]|[^.\[\]]+")
_ELSE = "..."


def outline(error: ApiError) -> tuple[str, str]:
    """The field at fault and the message of an error, as far as neither has text of the request.

    Args:
        error: as the client is told it. What the engine, the tokenizer or a template says may have any text after its
            first words, so of such messages only these are kept.

    Returns:
        The field, empty if there is none, in which `...` stands for each name that the client has chosen; and the
        message, which ends in `...` where it goes on.
    """
    param = _known(error.param or "")
    text = error.message
    begin = ""
    if error.param and text.startswith(error.param):
        begin, text = param, text[len(error.param) :]
    if isinstance(error.__cause__, MlxrError):
        start = len(text) - len(text.removeprefix(": "))
        text = _cut(text, text.find(": ", start))
    match = _QUOTES.search(text)
    return param, begin + _cut(text, match.start() if match else -1)


def _cut(text: str, at: int) -> str:
    return text if at < 0 else f"{text[:at].rstrip(' :;,(')} {_ELSE}"


def _known(param: str) -> str:
    """A field's place; of what clients name themselves, such as the properties of a schema, `...`."""
    names = (part if part.startswith("[") or part in _field_names() else _ELSE for part in _PART.findall(param))
    return "".join(name if name.startswith("[") else f".{name}" for name in names).removeprefix(".")


@cache
def _field_names() -> frozenset[str]:
    """The names of all fields of all requests, with those that are refused by name."""
    from mlxr.server.fields import ApiModel  # noqa: PLC0415 (which notes warnings in the record that has outlines)

    names: set[str] = set()
    kinds: list[type[ApiModel]] = [ApiModel]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        names.update(kind.model_fields, (field.alias for field in kind.model_fields.values() if field.alias))
        names.update(part for place in kind.refused for part in re.split(r"[.\[\]]+", place))
    return frozenset(names - {""})

"""Explains text that is not YAML in plain words instead of the parser's, and points at the key, not behind it."""

import re
from collections.abc import Sequence

import yaml

from mlxr.compiler.spec.problems import Mark, Problem

# A pattern of PyYAML's message (context and problem), our message, the fix, and whether to point to where the
# construct began instead of where the parser gave up.
_WORDS: tuple[tuple[str, str, str, bool], ...] = (
    (r"'\\t'", "a tab cannot indent or separate here", "use spaces", False),
    (r"could not find expected ':'", "a key without ':'", "write `key: value`", True),
    (r"but found another document", "a second document", "a spec is one document: remove the `---`", False),
    (
        r"block mapping expected <block end>, but found '<block mapping start>'",
        "this key is indented unlike those above it",
        "indent the keys of a section alike",
        False,
    ),
    (
        r"block mapping expected <block end>, but found '(-|<block sequence start>)'",
        "a list item stands among keys",
        "indent it below the key that it belongs to",
        False,
    ),
    (
        r"block collection expected <block end>, but found '\?'",
        "a key stands among the items of a list",
        "a section has either keys or items: indent the key, or remove the `-`",
        False,
    ),
    (r"flow sequence expected ',' or '\]', but got '<stream end>'", "a [ without its ]", "close the list", True),
    (r"flow mapping expected ',' or '\}', but got '<stream end>'", "a { without its }", "close the section", True),
    (r"flow sequence expected ',' or '\]'", "expected , or ] here", "close the list that [ opens", False),
    (r"flow mapping expected ',' or '\}'", "expected , or } here", "close the section that { opens", False),
    (r"found '<stream end>'", "the text ends where a value is expected", "close what [ or { opens", False),
    (r"quoted scalar found unexpected end of stream", "a quote that is not closed", "close it", True),
    (
        r"found unknown escape character '(.)'",
        r"\\\1 is not an escape",
        r"write \\\\ for a backslash, or use single quotes",
        False,
    ),
    (r"found character '(.)' that cannot start any token", r"a value cannot begin with \1", "put it in quotes", False),
    (
        r"found undefined alias '(.*?)'",
        r"*\1 stands for a value that is named nowhere",
        "put it in quotes if it is text",
        False,
    ),
    (r"but found '(?!<)(.+?)'", r"\1 is not allowed here", "remove it, or put the text in quotes", False),
)


def explain_yaml(error: yaml.MarkedYAMLError, lines: Sequence[str]) -> Problem:
    """The parser's error as a problem at its place in `lines`."""
    message = " ".join(str(part) for part in (error.context, error.problem) if part)
    place = _place(error.problem_mark or error.context_mark)
    if "mapping values are not allowed here" in message:
        return _second_colon(place, lines)
    for pattern, what, fix, at_beginning in _WORDS:
        match = re.search(pattern, message)
        if match:
            where = _place(error.context_mark) if at_beginning and error.context_mark else place
            return Problem(where, f"not YAML: {match.expand(what)}", match.expand(fix))
    return Problem(
        place, "not YAML: the text cannot be read from here on", "put values with special characters in quotes"
    )


def _second_colon(colon: Mark, lines: Sequence[str]) -> Problem:
    """A `key: value` where no key may stand: within a value on the same line, or below a line that is no section."""
    line = lines[colon.line - 1] if colon.line <= len(lines) else ""
    before = line[: colon.column - 1]
    if ":" in before:
        return Problem(colon, "not YAML: a ':' is not allowed here", "put the text in quotes")
    key = before.strip()
    return Problem(
        Mark(colon.line, len(before) - len(before.lstrip()) + 1),
        f"not YAML: {key} is not allowed here",
        "check the indentation: that of the key above it; or end the line above with ':' to make it a section",
    )


def _place(mark: yaml.Mark | None) -> Mark:
    return Mark(mark.line + 1, mark.column + 1) if mark else Mark(1, 1)

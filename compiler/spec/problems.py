"""Problems at places of a text file, and how they are shown."""

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

MAX_SHOWN = 20
_MAX_LINE = 160


class Mark(NamedTuple):
    """A place in a text file; both numbers count from 1."""

    line: int
    column: int


class Problem(NamedTuple):
    """One mistake, and how to fix it if that is not obvious."""

    mark: Mark
    text: str
    fix: str = ""


def render(problems: Sequence[Problem], source: str, lines: Sequence[str]) -> str:
    """All problems in the order of the file, each with `source:line:column`, the line itself, and the fix."""
    ordered = sorted(dict.fromkeys(problems), key=lambda problem: problem.mark)
    blocks = [_render_one(problem, source, lines) for problem in ordered[:MAX_SHOWN]]
    if len(ordered) > MAX_SHOWN:
        blocks.append(f"{source}: and {len(ordered) - MAX_SHOWN} more problems")
    return "\n".join(blocks).encode("utf-8", "backslashreplace").decode("utf-8")


def _render_one(problem: Problem, source: str, lines: Sequence[str]) -> str:
    line, column = problem.mark
    text = [f"{source}:{line}:{column}: {problem.text}"]
    excerpt = lines[line - 1] if line <= len(lines) else ""
    excerpt = "".join(char if char.isprintable() or char == "\t" else "\ufffd" for char in excerpt[: _MAX_LINE + 1])
    if excerpt.strip() and len(excerpt) <= _MAX_LINE:
        number = f"{line:>6}"
        text.append(f"{number} | {excerpt}")
        pad = "".join(map(_blank, excerpt[: column - 1])) + " " * (column - 1 - len(excerpt))
        text.append(f"{' ' * len(number)} | {pad}^")
    if problem.fix:
        text.append(f"  fix: {problem.fix}")
    return "\n".join(text)


def _blank(char: str) -> str:
    """As many blanks as a character is wide on a terminal, so that the mark is below its character."""
    if char == "\t":
        return char
    return "" if unicodedata.combining(char) else "  " if unicodedata.east_asian_width(char) in "WF" else " "

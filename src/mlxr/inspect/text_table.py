"""Tables for a terminal of any width: columns that do not fit move to a line below their row."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

GAP = "  "
NARROWEST = 20


@dataclass(frozen=True)
class Ink:
    """Escape codes, or nothing when the text goes to a file or a pipe."""

    on: bool

    def bold(self, text: str) -> str:
        """Bold text."""
        return f"\x1b[1m{text}\x1b[0m" if self.on and text else text

    def dim(self, text: str) -> str:
        """Dim text."""
        return f"\x1b[2m{text}\x1b[0m" if self.on and text else text


@dataclass(frozen=True)
class Column:
    """A column. If not all fit, those of the lowest `rank` move to the line below first."""

    title: str
    rank: int
    right: bool = False
    named: bool = True
    """Whether its value has its name before it on the line below."""


@dataclass(frozen=True)
class Heading:
    """A line across the table."""

    text: str


Row = Sequence[str] | Heading


def render_table(columns: Sequence[Column], rows: Sequence[Row], width: int, ink: Ink) -> list[str]:
    """Lines of at most `width` characters (never less than 20), escape codes not counted."""
    width = max(width, NARROWEST)
    cells = [row for row in rows if not isinstance(row, Heading)]
    widths = [max(len(c.title), *(len(row[i]) for row in cells)) if cells else 0 for i, c in enumerate(columns)]
    shown = _fitting(columns, widths, width)
    below = [i for i in range(len(columns)) if i not in shown]
    titles = _line([columns[i].title for i in shown], [columns[i] for i in shown], [widths[i] for i in shown])
    lines = [ink.bold(line) for line in _wrap(titles, width, "")]
    for row in rows:
        if isinstance(row, Heading):
            lines += [ink.bold(line) for line in _wrap(row.text, width, "")]
            continue
        line = _line([row[i] for i in shown], [columns[i] for i in shown], [widths[i] for i in shown])
        lines += _wrap(line, width, "")
        rest = [f"{columns[i].title} {row[i]}" if columns[i].named else row[i] for i in below if row[i].strip("- ")]
        indent = " " * min(4, width // 8)
        lines += [ink.dim(text) for text in _wrap("; ".join(rest), width, indent) if rest]
    return lines


def _fitting(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    shown = list(range(len(columns)))
    while len(shown) > 1 and sum(widths[i] for i in shown) + len(GAP) * (len(shown) - 1) > width:
        shown.remove(min(shown, key=lambda i: columns[i].rank))
    return shown


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    padded = [c.rjust(w) if column.right else c.ljust(w) for c, column, w in zip(cells, columns, widths, strict=True)]
    return GAP.join(padded).rstrip()


def _wrap(text: str, width: int, indent: str) -> list[str]:
    if len(indent) + len(text) <= width:
        return [indent + text]
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True
    )

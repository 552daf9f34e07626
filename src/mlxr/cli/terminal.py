"""The terminal, or what stands in its place: standard streams, tables, a line of progress."""

import io
import os
import shutil
import sys
from collections.abc import Sequence

from mlxr.compiler.text import printable

_DEFAULT_SIZE = (120, 24)


def show_any_character() -> None:
    """Makes standard output show a ? for a character that it cannot show, instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def refuse_other_bytes_than_text() -> None:
    """Makes standard input raise UnicodeDecodeError where it is not text; some locales would let that pass."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="strict")


def terminal_width() -> int:
    """Characters of a line."""
    return shutil.get_terminal_size(_DEFAULT_SIZE).columns


def shows_colour() -> bool:
    """Whether standard output takes colour: if it is a terminal and NO_COLOR is not set (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Prints rows, of which the first one is the heading, in columns."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


class ProgressLine:
    """A line on standard error that says how far a command has come, if that is a terminal; else nothing is shown."""

    def __init__(self) -> None:
        self._shown = False
        self._terminal = sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Replaces the line's text."""
        if self._terminal:
            print(f"\r\x1b[K{printable(text)}", end="", file=sys.stderr, flush=True)
            self._shown = True

    def __enter__(self) -> "ProgressLine":
        """Itself; leaving removes the line."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Removes the line."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = False

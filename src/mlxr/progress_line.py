"""Shows how far a long command has come."""

import sys

from mlxr.compiler.text import printable


class ProgressLine:
    """A progress line on standard error if that is a terminal; else nothing is shown."""

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

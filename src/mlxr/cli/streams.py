"""Standard streams as commands need them."""

import argparse
import io
import sys


def show_any_character() -> None:
    """Standard output shows a ? for a character that it cannot show, instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def refuse_other_bytes_than_text() -> None:
    """Reading standard input raises UnicodeDecodeError where it is not text; some locales would let it pass."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="strict")


def text_argument(text: str) -> str:
    """An argument that is text, for argparse.

    Raises:
        ArgumentTypeError: it is not UTF-8.
    """
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise argparse.ArgumentTypeError("the text is not UTF-8")
    return text


class ProgressLine:
    """A line on a terminal's standard error that says how far a command is; nothing where there is no terminal."""

    def __init__(self) -> None:
        self._shown = False
        self._terminal = sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Puts a text in the place of the last one."""
        if self._terminal:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            self._shown = True

    def __enter__(self) -> "ProgressLine":
        """Itself; leaving takes the line away."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Takes the line away."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = False

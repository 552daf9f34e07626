"""Standard streams as commands need them."""

import argparse
import io
import sys


def show_any_character() -> None:
    """Makes standard output show a ? for a character that it cannot show, instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def refuse_other_bytes_than_text() -> None:
    """Makes standard input raise UnicodeDecodeError where it is not text; some locales would let that pass."""
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

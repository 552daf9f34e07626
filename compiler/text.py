"""Text for people: sizes, counts with their nouns, and messages as a terminal or a client may show them."""

import re


def size(size_bytes: int) -> str:
    """A number of bytes as text: 1.5 GiB."""
    value, unit = float(size_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number and what it counts.

    Args:
        number: how many.
        noun: the noun in the singular.
        plural: its plural, where that is not the noun and an s.
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""All but tabs and line ends. The last two kinds turn the direction of what follows, so that it reads as another."""


def printable(text: object) -> str:
    r"""A text in which characters that control a terminal are spelled out, as `\x1b`.

    Names in a file, which messages quote, could else colour the screen, move the cursor, or set a window's title.
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), str(text))


_IN_PYTHON = re.compile(
    r"\[Errno -?\d+\] | \(mlxr\.Changes\([^()]*\)\)|; in Python cache_dtype"
    r"|(?:; in Python changes=|, |(?<=\())mlxr\.Changes\([^()]*\)(?:, (?=[^)]))?"
)


def without_python(text: object) -> str:
    """A message without its hints for Python, and without names of error numbers: `--context N; in Python ...`."""
    return _IN_PYTHON.sub("", str(text))

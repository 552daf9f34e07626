"""Text of files as a terminal may show it."""

import re

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""All but tabs and line ends. The last two kinds turn the direction of what follows, so that it reads as another."""


def printable(text: object) -> str:
    r"""A text in which characters that control a terminal are spelled out, as `\x1b`.

    Names in a file, which messages quote, could else colour the screen, move the cursor, or set a window's title.
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), str(text))

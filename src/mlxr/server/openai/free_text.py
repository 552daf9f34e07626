"""Reads a custom tool's free text out of the JSON in which a model writes it, piece by piece."""

import json
import re

from pydantic_core import from_json

_START = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_CERTAIN = re.compile(r'(?:[^"\\]|\\["\\/bfnrt]|\\u(?!d[89ab])[0-9a-f]{4}|\\ud[89ab][0-9a-f]{2}\\u[0-9a-f]{4})*', re.I)
"""Whole escapes only: the two halves of a character come together."""

_LONGEST_START = 1000


class FreeText:
    """The text of one call, of whose arguments `push` gets the next characters.

    A model that is not held to a form may write other things than an object with `input`: then what it wrote comes, as
    it is, at the end.
    """

    def __init__(self) -> None:
        """Starts before the arguments."""
        self._written: list[str] = []
        self._told: list[str] = []
        self._rest = ""
        self._has_begun = self._has_ended = False

    @property
    def text(self) -> str:
        """What is certain so far."""
        return "".join(self._told)

    def push(self, piece: str) -> str:
        """The text that becomes certain, perhaps nothing."""
        self._written.append(piece)
        if self._has_ended:
            return ""
        self._rest += piece
        if not self._has_begun:
            start = _START.match(self._rest)
            if start is None:
                self._has_ended = len(self._rest) > _LONGEST_START
                return ""
            self._has_begun, self._rest = True, self._rest[start.end() :]
        certain = _CERTAIN.match(self._rest)
        assert certain is not None, "it matches nothing, too"
        self._rest = self._rest[certain.end() :]
        self._has_ended = self._rest.startswith('"')
        return self._tell(json.loads(f'"{certain[0]}"', strict=False))

    def finish(self) -> str:
        """The text that is left at the end of the call."""
        if self._has_begun:
            return ""
        written = "".join(self._written)
        try:
            value = from_json(written, allow_partial="trailing-strings")  # it may have been cut short
        except ValueError:
            return self._tell(written)
        if isinstance(value, dict) and isinstance(value.get("input"), str):
            value = value["input"]
        return self._tell(value if isinstance(value, str) else written if value else "")

    def _tell(self, text: str) -> str:
        if text:
            self._told.append(text)
        return text

"""Finds where a JSON value ends in text that comes piece by piece, without building the value."""

import re

_IN_STRING = re.compile(r'["\\\ud800\x00-\x1f]')
_OUTSIDE = re.compile(r'["{}\[\]<\ud800]')
_SCALAR_END = re.compile(r"[\s,}\]<\ud800]")


class JsonValue:
    """One value, of which `feed` gets the next characters. It only balances brackets and quotes.

    A control token ends a value anywhere (it comes as U+D800 and its name, see `AnswerReader`), and `<` does outside of
    strings: so an unfinished value ends where the call does.

    Attributes:
        is_complete: whether the value has ended as JSON does.
        raw: where, in the text that was fed last, strings have characters that JSON escapes, such as line ends.
    """

    def __init__(self) -> None:
        """Starts before a value, at its first character."""
        self.is_complete = False
        self.raw: list[int] = []
        self._depth = 0
        self._in_string = self._escaped = False
        self._is_scalar: bool | None = None

    def feed(self, text: str) -> int | None:
        """Where the value ends: characters of `text` that belong to it; None if all do and more may."""
        position = 0
        self.raw = []
        if self._is_scalar is None and text:
            self._is_scalar = text[0] not in '{["'
        if self._is_scalar:
            end = _SCALAR_END.search(text)
            self.is_complete = end is not None
            return end.start() if end else None
        while position < len(text):
            if self._escaped:
                if text[position] == "\ud800":
                    return position
                self._escaped, position = False, position + 1
                continue
            match = (_IN_STRING if self._in_string else _OUTSIDE).search(text, position)
            if match is None:
                return None
            sign, position = match[0], match.end()
            if sign in ("\ud800", "<"):
                return match.start()
            if sign == "\\":
                self._escaped = True
            elif sign < " ":
                self.raw.append(match.start())
            elif sign == '"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if sign in "{[" else -1
            if not self._in_string and self._depth <= 0:
                self.is_complete = self._depth == 0
                return position if self.is_complete else match.start()
        return None

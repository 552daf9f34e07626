"""Values as models write them in calls: JSON, Python, or with quotes and keys of a template's own."""

import ast
import json
import re
from contextlib import suppress
from typing import Any

_SCALAR = re.compile(r"[^\s,:(){}\[\]]+")
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_CLOSING = {"{": "}", "[": "]", "(": ")"}


def as_json(text: str, quote: tuple[str, str] | None = None) -> str | None:
    """A value as JSON text; None if it is none that is understood.

    Args:
        text: the value.
        quote: what begins and ends a string, if that is not `"` or `'`.
    """
    text = text.strip()
    try:
        json.loads(text)
        return text
    except (ValueError, RecursionError):
        pass
    try:
        value, end = _Loose(text, quote).value(0)
    except (ValueError, IndexError, RecursionError):
        return None
    if text[end:].strip():
        return None
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None


class LooseScan:
    """Finds where a value ends in text that comes piece by piece: brackets and quotes are balanced.

    Attributes:
        has_ended: whether the end was found.
    """

    def __init__(self, quote: tuple[str, str] | None, ends: tuple[str, ...]) -> None:
        """Starts before a value.

        Args:
            quote: as for `as_json`.
            ends: texts that end a value outside of quotes and brackets.
        """
        self._quotes = {'"': '"', "'": "'"} | ({quote[0]: quote[1]} if quote else {})
        self._ends = tuple(end for end in ends if end)
        self._close = ""
        self._depth = 0
        self._begun = False
        self.has_ended = False
        signs = [*self._quotes, *"{[()]}", *self._ends, "\ud800"]
        self._signs = tuple(sign for sign in set(signs) if len(sign) > 1)
        self._sign = re.compile("|".join(re.escape(sign) for sign in sorted(set(signs), key=len, reverse=True)))
        self._most = max(len(sign) for sign in [*signs, *self._quotes.values()])
        self._own = quote is not None

    def feed(self, text: str, *, is_last: bool) -> int:
        """How many characters of a text belong to the value, as far as that is certain.

        Args:
            text: what has not been told to belong to it yet, and what has come since.
            is_last: whether no more comes.
        """
        at = 0
        while at < len(text):
            if self._close:
                end, sure = self._string_end(text, at, is_last=is_last)
                at = end
                if not sure:
                    return at
                continue
            match = self._sign.search(text, at)
            if match is None:
                return len(text) if is_last else max(at, len(text) - self._most + 1)
            if not is_last and (longer := self._open(text, at, match)) is not None:
                return longer  # it may turn out to be a longer sign, or a part of one
            sign = match[0]
            # A custom quote that is a control token begins with the sign of one.
            if sign in self._quotes:
                self._close, at, self._begun = self._quotes[sign], match.end(), True
                continue
            at = match.end()
            if self._depth and len(sign) > 1:  # within brackets only these count, as in `}}}` of which two are an end
                sign, at = sign[0], match.start() + 1
            if self._depth == 0 and (sign in self._ends or sign in ")]}" or sign == "\ud800"):
                self.has_ended = True
                return match.start()
            if sign in "{[(":
                self._depth += 1
            elif sign in ")]}":
                self._depth -= 1
            elif sign == "\ud800":
                self.has_ended = True
                return match.start()
        return at

    def _open(self, text: str, at: int, match: "re.Match[str]") -> int | None:
        """Where a sign may have begun that is longer than the one that was found, and ends later; None: nowhere."""
        for start in range(max(at, len(text) - self._most + 1), match.start() + 1):
            rest = text[start:]
            if any(len(sign) > len(rest) and sign.startswith(rest) for sign in self._signs):
                return start
        return None

    def _string_end(self, text: str, at: int, *, is_last: bool) -> tuple[int, bool]:
        close = self._close
        escapes = len(close) == 1
        while True:
            found = text.find(close, at)
            slash = text.find("\\", at) if escapes else -1
            if slash >= 0 and (found < 0 or slash < found):
                if slash + 2 > len(text):
                    return slash, False
                at = slash + 2
                continue
            if found < 0:
                return (len(text) if is_last else max(at, len(text) - len(close) + 1)), False
            self._close = ""
            return found + len(close), True


class _Loose:
    """Reads a whole value."""

    def __init__(self, text: str, quote: tuple[str, str] | None) -> None:
        self._text = text
        self._quote = None if quote in (('"', '"'), ("'", "'")) else quote  # in these there are escapes

    def value(self, at: int) -> tuple[Any, int]:
        at = self._skip(at)
        text = self._text
        if self._quote and text.startswith(self._quote[0], at):
            start = at + len(self._quote[0])
            end = text.index(self._quote[1], start)
            return text[start:end], end + len(self._quote[1])
        if text[at] in "\"'":
            return self._string(at)
        if text[at] == "{":
            return self._object(at)
        if text[at] in "[(":
            return self._list(at)
        match = _SCALAR.match(text, at)
        if match is None:
            raise ValueError("no value")
        return self._scalar(match[0]), match.end()

    def _scalar(self, word: str) -> Any:
        if word in _WORDS:
            return _WORDS[word]
        return json.loads(word)

    def _string(self, at: int) -> tuple[str, int]:
        sign, end = self._text[at], at + 1
        while self._text[end] != sign:
            end += 2 if self._text[end] == "\\" else 1
        return _unquoted(self._text[at : end + 1]), end + 1

    def _object(self, at: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        at = self._skip(at + 1)
        while self._text[at] != "}":
            if self._text[at] in "\"'" or (self._quote and self._text.startswith(self._quote[0], at)):
                key, at = self.value(at)
            else:
                end = self._text.index(":", at)
                key, at = self._text[at:end].strip(), end
            at = self._skip(at)
            if self._text[at] != ":":
                raise ValueError("no value")
            found[str(key)], at = self.value(at + 1)
            at = self._next(at, "}")
        return found, at + 1

    def _list(self, at: int) -> tuple[list[Any], int]:
        end, found = _CLOSING[self._text[at]], []
        at = self._skip(at + 1)
        while self._text[at] != end:
            value, at = self.value(at)
            found.append(value)
            at = self._next(at, end)
        return found, at + 1

    def _next(self, at: int, end: str) -> int:
        at = self._skip(at)
        if self._text[at] == ",":
            return self._skip(at + 1)
        if self._text[at] != end:
            raise ValueError("neither a comma nor an end")
        return at

    def _skip(self, at: int) -> int:
        while self._text[at].isspace():
            at += 1
        return at


def _unquoted(text: str) -> str:
    """A string of JSON or Python; what stands between its quotes if it is neither."""
    if text[0] == '"':
        with suppress(ValueError):
            return str(json.loads(text, strict=False))
    with suppress(ValueError, SyntaxError):
        return str(ast.literal_eval(text.replace("\n", "\\n").replace("\r", "\\r")))
    return text[1:-1]

"""Keeps the control tokens that a template writes apart from their names in what users write.

A rendered conversation is one text. If each name of a control token in it meant that token, a user could end their own
turn with `<|im_end|>` and begin one of the system. So a mark is put into the names that messages have before the
template is rendered, and taken out afterwards: the names that are whole then are the template's own.
"""

import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mlxr.compiler.errors import RequestError
from mlxr.runtime.tokenizer.token_names import names_pattern

_AT_ONCE = 1 << 20
_MOST_NAMES = 100_000
"""In a text. What is put into each makes it longer."""


class ControlNames:
    """The names of a model's control tokens, and a mark that no template and no user writes.

    The mark is of digits, which stay what they are in JSON, in capitals and at the ends of a text that is trimmed.
    """

    def __init__(self, names: Collection[str], spoken: Collection[str] = ()) -> None:
        """Takes the names; those of one character are left out, as no mark fits into them.

        Args:
            names: of control tokens.
            spoken: those that mean their tokens also in the content of the assistant's messages.
        """
        names = [name for name in names if len(name) > 1]
        self._all = names_pattern(names)
        self._unspoken = names_pattern([name for name in names if name not in spoken])
        self._longest = max(map(len, names), default=0)
        self._beginnings = {name[:end] for name in names for end in range(1, len(name))}
        self._ends = {name[start:] for name in names for start in range(1, len(name))}
        self._first_signs, self._last_signs = {name[0] for name in names}, {name[-1] for name in names}
        self._mark = str(secrets.randbelow(9 * 10**19) + 10**19)

    def marked_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message with a mark in each name of a control token, except its role."""
        marked: dict[str, Any] = {key: self.marked(value) for key, value in message.items()}
        marked["role"] = message["role"]
        if message["role"] == "assistant":
            marked["content"] = self._marked(message["content"], self._unspoken)
        return marked

    def marked(self, value: Any) -> Any:
        """A value with a mark in each name that its texts have: those of dicts, as keys and values, and of lists.

        A text that ends as a name begins, or begins as one ends, gets a mark there: the text beside it could make the
        name whole.

        Raises:
            RequestError: a text has 100,000 names.
        """
        if isinstance(value, str):
            return self._marked(value, self._all)
        if isinstance(value, Mapping):
            return {self.marked(key): self.marked(item) for key, item in value.items()}
        return [self.marked(item) for item in value] if isinstance(value, list | tuple) else value

    def unmarked(self, text: str) -> str:
        """A text without its marks."""
        return text.replace(self._mark, "")

    def split(self, text: str) -> list[str]:
        """A rendered text in parts without marks: those at odd places are control tokens of the template."""
        return [self.unmarked(part) for part in self._all.split(text)]

    def _marked(self, text: str, pattern: re.Pattern[str]) -> str:
        while _has(pattern, text, self._longest):  # in what is left of a name there may be another
            text, count = pattern.subn(lambda match: match[0][0] + self._mark + match[0][1:], text, count=_MOST_NAMES)
            if count == _MOST_NAMES:
                raise RequestError(f"a text has {count} names of control tokens or more: send less")
        inner = text.strip()  # a template may trim it
        begins = inner[: self._longest]
        if any(begins[:size] in self._ends for size in _sizes(begins, self._last_signs)):
            text = text.replace(inner, self._mark + inner, 1)
            inner = self._mark + inner
        ends = inner[-self._longest :]
        if any(ends[-size:] in self._beginnings for size in _sizes(ends, self._first_signs)):
            text = text.replace(inner, inner + self._mark, 1)
        return text


def _has(pattern: re.Pattern[str], text: str, longest: int) -> bool:
    """Whether a text has a match of at most `longest` characters. Other threads can run between the searches."""
    return any(pattern.search(text, start, start + _AT_ONCE + longest) for start in range(0, len(text), _AT_ONCE))


def _sizes(text: str, signs: Collection[str]) -> Sequence[int]:
    """Sizes of what a name might end or begin with; none if none of the signs is there, as in most texts."""
    return range(1, len(text) + 1) if any(sign in text for sign in signs) else ()

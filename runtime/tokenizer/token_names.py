"""Finds the names of tokens in a text, and splits it there, for libraries that do not."""

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_SPACES_BEFORE = re.compile(r"[^\S\x1c-\x1f]+\Z")  # white space by Unicode, as in the `tokenizers` library
_SPACES_AFTER = re.compile(r"\A[^\S\x1c-\x1f]+")
_STEM = 8
"""Characters by which names are grouped. Some models have thousands of names that begin alike (`<unused17>`), and to
try each of them wherever a text has `<` would take long."""


def names_pattern(names: Iterable[str]) -> re.Pattern[str]:
    """Finds names in a text, of several at one place the longest; `split` gives them at odd places."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(filter(None, names), key=len, reverse=True):
        groups[name[:_STEM]].append(re.escape(name[_STEM:]))
    # A name that is shorter than a stem stands for itself: it comes after the stems that it may begin.
    stems = sorted(groups, key=len, reverse=True)
    choices = "|".join(f"{re.escape(stem)}(?:{'|'.join(groups[stem])})" for stem in stems)
    return re.compile(f"({choices or '(?!)'})")


@dataclass(frozen=True)
class TokenNames:
    """Names that are found in a text before anything else, of several at one place the longest.

    Attributes:
        control: the ids of control tokens by their names, which are found on request.
        always: the ids of tokens whose names are found in any text.
        strips_left: tokens before which white space is left out.
        strips_right: tokens after which it is left out.
    """

    control: Mapping[str, int]
    always: Mapping[str, int]
    strips_left: frozenset[int] = frozenset()
    strips_right: frozenset[int] = frozenset()

    @property
    def strips(self) -> bool:
        """Whether any white space is left out."""
        return bool(self.strips_left or self.strips_right)

    def split(self, text: str, parse_special: bool) -> list[str | int]:
        """The parts of a text: tokens, and text between them; no text is empty."""
        if parse_special:
            return self.joined(self._any_pattern.split(text), self._any)
        if self.always:
            return self.joined(self._always_pattern.split(text), self.always)
        return [text] if text else []

    def joined(self, parts: Sequence[str], ids: Mapping[str, int]) -> list[str | int]:
        """The parts of a text, of which those at odd places are names; without the white space that names strip."""
        joined: list[str | int] = []
        for index, part in enumerate(parts):
            if index % 2:
                joined.append(ids[part])
                continue
            text = part
            if index and ids[parts[index - 1]] in self.strips_right:
                text = _SPACES_AFTER.sub("", text)
            if index + 1 < len(parts) and ids[parts[index + 1]] in self.strips_left:
                text = _SPACES_BEFORE.sub("", text)
            if text:
                joined.append(text)
        return joined

    @functools.cached_property
    def _any(self) -> Mapping[str, int]:
        return {**self.always, **self.control}

    @functools.cached_property
    def _any_pattern(self) -> re.Pattern[str]:
        return names_pattern(self._any)

    @functools.cached_property
    def _always_pattern(self) -> re.Pattern[str]:
        return names_pattern(self.always)

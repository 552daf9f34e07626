"""Reads GBNF, the grammars of llama.cpp, as trees.

It follows what llama.cpp's parser does, not its guide alone: classes without characters are empty, a later definition
of a rule replaces an earlier one, marks of repetition may follow each other. Names may have underscores here.
Source: llama.cpp, src/llama-grammar.cpp, and grammars/README.md.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from mlxr.runtime.engine.errors import ConstraintError

Ranges = tuple[tuple[int, int], ...]
"""Characters: first and last code points, in order, apart from each other."""
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_SPACE = re.compile(r"(?:[ \t]|\#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|\#[^\r\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_NUMBER = re.compile(r"[0-9]+")
_TOKEN = re.compile(r"(!?)<(?:\[([0-9]+)\]|([^>]*))>")
_REPETITIONS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_MOST_CHARACTER = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)


@dataclass(frozen=True, eq=False)
class Text:
    """Exactly this text, perhaps none."""

    text: str


@dataclass(frozen=True, eq=False)
class Characters:
    """One of these characters."""

    ranges: Ranges


@dataclass(frozen=True, eq=False)
class Token:
    """One token of the vocabulary, whatever text it has: this one, or any other."""

    token_id: int
    is_negated: bool


@dataclass(frozen=True, eq=False)
class Rule:
    """What a rule of this name is."""

    name: str


@dataclass(frozen=True, eq=False)
class Sequence:
    """One after the other."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, eq=False)
class Choice:
    """One of these."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, eq=False)
class Repetition:
    """One after the other, so many times; `most` is None if there is no limit."""

    part: "Node"
    least: int
    most: int | None


@dataclass(frozen=True)
class Lexeme:
    """Nodes that a lexer reads as one, one after the other; parsed grammars have none yet."""

    nodes: tuple["Node", ...]


Node = Text | Characters | Token | Rule | Sequence | Choice | Repetition | Lexeme


def parse_gbnf(text: str, token_id: Callable[[str], int | None]) -> dict[str, Node]:
    """The rules of a grammar by their names; `root` is among them.

    Args:
        text: the grammar.
        token_id: the id of a token by its name, `<think>`; None if it is not one token.

    Raises:
        ConstraintError: it is not GBNF: where, and what is expected there; or a rule that is used is missing.
    """
    try:
        return _Parser(text, token_id).grammar()
    except RecursionError as error:
        raise ConstraintError("grammar: the GBNF is nested too deeply", "grammar") from error


class _Parser:
    """Reads from `self._at` on."""

    def __init__(self, text: str, token_id: Callable[[str], int | None]) -> None:
        self._text, self._token_id = text, token_id
        self._at = 0
        self._used: dict[str, int] = {}

    def grammar(self) -> dict[str, Node]:
        rules = {}
        self._skip(_SPACE_AND_LINES)
        while self._at < len(self._text):
            name = self._match(_NAME, "the name of a rule")
            self._skip(_SPACE)
            if not self._take("::="):
                raise self._error(f"expected ::= after the name {name}")
            self._skip(_SPACE_AND_LINES)
            rules[name] = self._choice(is_nested=False)
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                raise self._error("expected a character, a rule, a group or the end of the line")
            self._skip(_SPACE_AND_LINES)
        for name, start in self._used.items():
            if name not in rules:
                self._at = start
                raise self._error(f"no rule has the name {name}")
        if "root" not in rules:
            raise ConstraintError(
                "grammar: cannot be read as GBNF: no rule has the name root, with which answers begin", "grammar"
            )
        return rules

    def _choice(self, *, is_nested: bool) -> Node:
        parts = [self._sequence(is_nested=is_nested)]
        while self._take("|"):
            self._skip(_SPACE_AND_LINES)
            parts.append(self._sequence(is_nested=is_nested))
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self, *, is_nested: bool) -> Node:
        space = _SPACE_AND_LINES if is_nested else _SPACE
        parts: list[Node] = []
        while self._at < len(self._text):
            sign = self._text[self._at]
            if sign in _REPETITIONS or sign == "{":
                if not parts:
                    raise self._error(f"nothing stands before {sign} that could be repeated")
                least, most = self._repetition(space)
                parts[-1] = Repetition(parts[-1], least, most)
            elif part := self._part(sign):
                parts.append(part)
            else:
                break
            self._skip(space)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _part(self, sign: str) -> Node | None:
        if sign == '"':
            return self._quoted()
        if sign == "[":
            return self._class()
        if sign == ".":
            self._at += 1
            return Characters(_without([]))
        if sign in "<!":
            return self._token()
        if sign == "(":
            self._at += 1
            self._skip(_SPACE_AND_LINES)
            part = self._choice(is_nested=True)
            if not self._take(")"):
                raise self._error("expected )")
            return part
        if _NAME.match(sign):
            start = self._at
            name = self._match(_NAME, "a name")
            self._used.setdefault(name, start)
            return Rule(name)
        return None

    def _quoted(self) -> Node:
        self._at += 1
        characters = []
        while not self._take('"'):
            start = self._at
            code = self._character()
            if code > _MOST_CHARACTER or _SURROGATES[0] <= code <= _SURROGATES[1]:
                written, self._at = self._text[start : self._at], start
                raise self._error(f"{written} is not a character")
            characters.append(chr(code))
        return Text("".join(characters))

    def _class(self) -> Node:
        self._at += 1
        is_negated = self._take("^")
        ranges = []
        while not self._take("]"):
            first = last = self._character()
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                last = self._character()
            ranges.append((first, last))
        if not ranges:
            return Text("")
        outside = _without(ranges)
        return Characters(outside if is_negated else _without([*outside]))

    def _token(self) -> Node:
        token = _TOKEN.match(self._text, self._at)
        if token is None:
            raise self._error("expected a token, such as <[128010]> or <think>")
        if token[2] is not None:
            token_id: int | None = int(token[2])
        else:
            token_id = self._token_id(f"<{token[3]}>")
        if token_id is None:
            raise self._error(f"<{token[3]}> is not one token of the model: write text in quotes")
        self._at = token.end()
        return Token(token_id, bool(token[1]))

    def _repetition(self, space: re.Pattern[str]) -> tuple[int, int | None]:
        sign = self._text[self._at]
        self._at += 1
        if sign != "{":
            return _REPETITIONS[sign]
        self._skip(space)
        least = most = int(self._match(_NUMBER, "a number"))
        self._skip(space)
        if self._take(","):
            self._skip(space)
            if number := _NUMBER.match(self._text, self._at):
                most, self._at = int(number[0]), number.end()
                self._skip(space)
            else:
                most = None  # type: ignore[assignment]
        if not self._take("}"):
            raise self._error("expected }")
        if most is not None and most < least:
            raise self._error(f"at least {least} and at most {most} cannot both hold")
        return least, most

    def _character(self) -> int:
        """The next character, perhaps escaped, as its code point."""
        if self._at >= len(self._text):
            raise self._error("a quote or a class has no end")
        sign = self._text[self._at]
        if sign != "\\":
            self._at += 1
            return ord(sign)
        escape = self._text[self._at + 1 : self._at + 2]
        if escape in _HEX_DIGITS:
            digits = self._text[self._at + 2 : self._at + 2 + _HEX_DIGITS[escape]]
            if re.fullmatch(f"[0-9A-Fa-f]{{{_HEX_DIGITS[escape]}}}", digits) is None:
                raise self._error(f"expected {_HEX_DIGITS[escape]} hexadecimal digits after \\{escape}")
            self._at += 2 + len(digits)
            return int(digits, 16)
        if escape not in _ESCAPES or not escape:
            raise self._error(f"\\{escape} is not an escape of GBNF")
        self._at += 2
        return ord(_ESCAPES[escape])

    def _skip(self, space: re.Pattern[str]) -> None:
        found = space.match(self._text, self._at)
        assert found is not None, "it may be empty"
        self._at = found.end()

    def _take(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _match(self, pattern: re.Pattern[str], what: str) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise self._error(f"expected {what}")
        self._at = found.end()
        return found[0]

    def _error(self, reason: str) -> ConstraintError:
        line = self._text.count("\n", 0, self._at) + 1
        column = self._at - self._text.rfind("\n", 0, self._at)
        near = self._text[self._at : self._at + 20].partition("\n")[0] or "the end"
        where = f"line {line}, column {column}, before {near!r}"
        return ConstraintError(f"grammar: cannot be read as GBNF: {where}: {reason}", "grammar")


def _without(ranges: list[tuple[int, int]]) -> Ranges:
    """All characters outside these ranges, of which some may be empty or no characters."""
    outside, start = [], 0
    for first, last in sorted([*ranges, _SURROGATES]):
        if first <= last:
            if start < first:
                outside.append((start, min(first - 1, _MOST_CHARACTER)))
            start = max(start, last + 1)
    if start <= _MOST_CHARACTER:
        outside.append((start, _MOST_CHARACTER))
    return tuple(outside)

"""Reads an answer while it is being generated: a family's grammar of answers as a generator that waits for text.

A family's `read` is written as if the whole answer were there: look for a marker, read a call. Where text is missing,
it yields, and continues when more has come. What may be the beginning of a marker is held back until that is certain.

Control tokens (`<|channel|>`) have no text. Here each is its name between two halves of surrogate pairs, which no text
has: so text that only spells such a name is not taken for the token.
"""

import re
import secrets
from collections.abc import Callable, Collection, Generator, Sequence
from typing import TypeVar

from mlxr.runtime.tokenizer.thinking_form import MARKER
from mlxr.server.chat.delta import Content, Delta, Reasoning, ToolArguments, ToolStart
from mlxr.server.chat.json_value import JsonValue

_T = TypeVar("_T")
Part = Generator[None, None, _T]
"""Part of a reading, which yields where it needs more of the answer, and returns a result."""
Reading = Part[None]
TextKind = type[Content] | type[Reasoning]

_OPEN, _CLOSE = "\ud800", "\udc00"
_CONTROL = re.compile(f"{_OPEN}(.*?){_CLOSE}", re.DOTALL)
_SPACE = " \t\r\n"


def spelled(name: str) -> str:
    """A control token of this name, as it stands between the text of an answer."""
    return f"{_OPEN}{name}{_CLOSE}"


def named(text: str) -> str:
    """The text with the names of control tokens in the place of these."""
    return _CONTROL.sub(r"\1", text)


class AnswerReader:
    """The text of one answer that has come and has not been read yet, and the deltas that were made of it.

    Attributes:
        ended: whether no more text comes.
        num_calls: how many tool calls have begun.
    """

    def __init__(self, control: Collection[str] = ()) -> None:
        """Starts before an answer.

        Args:
            control: the names of the model's control tokens.
        """
        self._control = control
        self._buffer = ""
        self._taken: list[str] = []
        self._deltas: list[Delta] = []
        self.ended = False
        self.num_calls = 0

    # What comes and goes.

    def add(self, text: str) -> None:
        """Adds text of the answer, in which control tokens are `spelled`."""
        self._buffer += text

    def take_deltas(self) -> list[Delta]:
        """The deltas since the last call."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def emit(self, kind: TextKind, text: str) -> None:
        """Adds text to what the answer has become; control tokens in it have none."""
        if _OPEN in text:
            text = _CONTROL.sub("", text)
        if text:
            self._deltas.append(kind(text))

    def start_call(self, name: str) -> None:
        """Begins a tool call."""
        self._deltas.append(ToolStart(self.num_calls, f"call_{secrets.token_hex(12)}", name))
        self.num_calls += 1

    def emit_arguments(self, text: str) -> None:
        """Adds text to the arguments of the newest call."""
        if _OPEN in text:
            text = _CONTROL.sub("", text)
        if text:
            self._deltas.append(ToolArguments(self.num_calls - 1, text))

    # Reading. What is read is taken out of the answer.

    def marker(self, name: str) -> str:
        """How a marker comes in answers: as a control token if the model has one of this name, else as text.

        It may also be several markers, with other text between them.
        """
        if name in self._control:
            return spelled(name)
        return "".join(spelled(part) if part in self._control else part for part in MARKER.split(name))

    def is_control(self, name: str) -> bool:
        """Whether a marker is a control token, which text cannot be taken for."""
        return name in self._control

    def mark(self) -> None:
        """Begins to remember what is read, for `since_mark`."""
        self._taken = []

    def since_mark(self) -> str:
        """What has been read since `mark`, with control tokens by their names."""
        return named("".join(self._taken))

    def rest(self) -> Reading:
        """All that is left is content, exactly as it comes."""
        yield from self.rest_as(lambda text: self.emit(Content, text))

    def rest_as(self, use: Callable[[str], None]) -> Reading:
        """All that is left, up to the end of the answer: calls a function with each piece of it."""
        while True:
            use(self._take(len(self._buffer)))
            if self.ended:
                return
            yield

    def put_back(self, text: str) -> None:
        """Puts text back that has just been read."""
        self._buffer = text + self._buffer

    def text_until(self, kind: TextKind, names: Sequence[str], *, exact: bool = False) -> Part[str | None]:
        """Emits text up to the first of some markers, which is read too.

        Args:
            kind: what the text is.
            names: of the markers.
            exact: whether white space before the marker belongs to the text; at the end of the answer it always does.

        Returns:
            The marker's name; None at the end of the answer.
        """
        return (yield from self.each_until(lambda text: self.emit(kind, text), names, exact=exact))

    def each_until(self, use: Callable[[str], None], names: Sequence[str], *, exact: bool = False) -> Part[str | None]:
        """As `text_until`, calling a function with each piece of the text."""
        space = "" if exact else _SPACE
        markers = {self.marker(name): name for name in names}
        pattern = re.compile("|".join(re.escape(marker) for marker in sorted(markers, key=len, reverse=True)))
        while True:
            match = pattern.search(self._buffer)
            if match is not None:
                use(self._take(match.start()).rstrip(space))
                self._take(len(match[0]))
                return markers[match[0]]
            use(self._take(len(self._buffer) if self.ended else self._num_certain(markers, space)))
            if self.ended:
                return None
            yield

    def skip_space(self) -> Reading:
        """Drops white space up to the next other text."""
        while True:
            self._take(len(self._buffer) - len(self._buffer.lstrip(_SPACE)))
            if self._buffer or self.ended:
                return
            yield

    def begins_with(self, name: str) -> Part[bool]:
        """Whether a marker comes next, perhaps after white space: then both are read, else nothing."""
        marker = self.marker(name)
        while True:
            text = self._buffer.lstrip(_SPACE)
            if text.startswith(marker):
                self._take(len(self._buffer) - len(text) + len(marker))
                return True
            if self.ended or not marker.startswith(text):
                return False
            yield

    def next_sign(self) -> Part[str]:
        """The next character that is no white space, which stays; nothing at the end of the answer."""
        yield from self.skip_space()
        return self._buffer[:1]

    def take_sign(self) -> None:
        """Reads the character that `next_sign` has returned."""
        self._take(1)

    def json_value(self, use: Callable[[str], None]) -> Part[bool]:
        """Reads a JSON value, calling a function with each piece of it.

        Returns:
            Whether it is complete; else the answer has ended, or something comes that no value has.
        """
        value = JsonValue()
        while True:
            end = value.feed(self._buffer)
            use(self._take(len(self._buffer) if end is None else end))
            if end is not None or self.ended:
                return value.is_complete
            yield

    def _take(self, length: int) -> str:
        text, self._buffer = self._buffer[:length], self._buffer[length:]
        if text:
            self._taken.append(text)
        return text

    def _num_certain(self, markers: Collection[str], space: str) -> int:
        """How many characters can be neither a marker's beginning nor white space before one."""
        text = self._buffer
        longest = max(map(len, markers))
        for start in range(max(0, len(text) - longest + 1), len(text)):
            if any(marker.startswith(text[start:]) for marker in markers):
                return len(text[:start].rstrip(space))
        return len(text.rstrip(space))

"""Reads an answer while it is being generated: a family's grammar of answers as a generator that waits for text.

A family's `read` is written as if the whole answer were there: look for a marker, read a call. Where text is missing,
it yields, and continues when more has come. What may be the beginning of a marker is held back until that is certain.

Control tokens (`<|channel|>`) have no text. Here each is its name between two halves of surrogate pairs, which no text
has: so text that only spells such a name is not taken for the token.
"""

import re
from collections.abc import Collection, Generator, Sequence

from mlxr.server.chat.delta import Content, Delta, Reasoning

Reading = Generator[None, None, None]
"""A family's reading of an answer, which yields where it needs more of it."""
Found = Generator[None, None, str | None]
"""Part of a reading that returns the marker it found; None: the answer has ended."""

_OPEN, _CLOSE = "\ud800", "\udc00"
_CONTROL = re.compile(f"{_OPEN}.*?{_CLOSE}", re.DOTALL)
_SPACE = " \t\r\n"


def spelled(name: str) -> str:
    """A control token of this name, as it stands between the text of an answer."""
    return f"{_OPEN}{name}{_CLOSE}"


class AnswerReader:
    """The text of one answer that has come and has not been read yet, and the deltas that were made of it.

    Attributes:
        ended: whether no more text comes.
    """

    def __init__(self, control: Collection[str] = ()) -> None:
        """Starts before an answer.

        Args:
            control: the names of the model's control tokens.
        """
        self._control = control
        self._buffer = ""
        self._deltas: list[Delta] = []
        self.ended = False

    def add(self, text: str) -> None:
        """Adds text of the answer, in which control tokens are `spelled`."""
        self._buffer += text

    def take_deltas(self) -> list[Delta]:
        """The deltas since the last call."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def marker(self, name: str) -> str:
        """How a marker comes in answers: as a control token if the model has one of this name, else as text."""
        return spelled(name) if name in self._control else name

    def rest(self) -> Reading:
        """All that is left, as content, exactly as it comes."""
        while True:
            self.emit(Content, self._take(len(self._buffer)))
            if self.ended:
                return
            yield

    def text_until(self, make: type[Content] | type[Reasoning], names: Sequence[str]) -> Found:
        """Emits text up to the first of some markers, which is taken out of the answer.

        White space before a marker belongs to no text; at the end of the answer it belongs to it.

        Args:
            make: what the text is.
            names: of the markers.

        Returns:
            The marker's name; None at the end of the answer.
        """
        markers = {self.marker(name): name for name in names}
        pattern = re.compile("|".join(re.escape(marker) for marker in sorted(markers, key=len, reverse=True)))
        while True:
            match = pattern.search(self._buffer)
            if match is not None:
                self.emit(make, self._take(match.start()).rstrip(_SPACE))
                self._take(len(match[0]))
                return markers[match[0]]
            self.emit(make, self._take(len(self._buffer) if self.ended else self._num_certain(markers)))
            if self.ended:
                return None
            yield

    def skip_space(self) -> Reading:
        """Drops white space up to the next other text."""
        while True:
            self._buffer = self._buffer.lstrip(_SPACE)
            if self._buffer or self.ended:
                return
            yield

    def emit(self, make: type[Content] | type[Reasoning], text: str) -> None:
        """Adds text to what the answer has become; control tokens in it have none."""
        if _OPEN in text:
            text = _CONTROL.sub("", text)
        if text:
            self._deltas.append(make(text))

    def _take(self, length: int) -> str:
        text, self._buffer = self._buffer[:length], self._buffer[length:]
        return text

    def _num_certain(self, markers: Collection[str]) -> int:
        """How many characters can be neither a marker's beginning nor white space before one."""
        text = self._buffer
        longest = max(map(len, markers))
        for start in range(max(0, len(text) - longest + 1), len(text)):
            if any(marker.startswith(text[start:]) for marker in markers):
                return len(text[:start].rstrip(_SPACE))
        return len(text.rstrip(_SPACE))

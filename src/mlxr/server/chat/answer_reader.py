"""Reads an answer while it is being generated: a family's grammar of answers as a generator that waits for text.

A family's `read` is written as if the whole answer were there: look for a marker, read a call. Where text is missing,
it yields, and continues when more has come. What may be the beginning of a marker is held back until that is certain.

Control tokens (`<|channel|>`) have no text. Here each is its name between two halves of surrogate pairs, which no text
has: so text that only spells such a name is not taken for the token.
"""

import json
import re
import secrets
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import TypeVar

from mlxr.runtime.tokenizer.thinking_form import MARKER
from mlxr.server.chat.delta import ContentDelta, Delta, ReasoningDelta, ToolArguments, ToolStart
from mlxr.server.chat.json_value import JsonValue
from mlxr.server.chat.loose_value import LooseScan

_T = TypeVar("_T")
Parse = Generator[None, None, _T]
"""A step of parsing, which yields where it needs more of the answer, and returns a result."""
Reading = Parse[None]
TextKind = type[ContentDelta] | type[ReasoningDelta]

_OPEN, _CLOSE = "\ud800", "\udc00"
_CONTROL = re.compile(f"{_OPEN}(.*?){_CLOSE}", re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_SPACE = " \t\r\n"


def spelled(name: str) -> str:
    """A control token of this name, as it stands between the text of an answer."""
    return f"{_OPEN}{name}{_CLOSE}"


def without_surrogates(text: str) -> str:
    """A text in which halves of surrogate pairs, which no encoding has, are escaped as in JSON."""
    return text if text.isascii() else _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def named(text: str) -> str:
    """The text with the names of control tokens in the place of these."""
    return _CONTROL.sub(r"\1", text)


class AnswerReader:
    """The text of one answer that has come and has not been read yet, and the deltas that were made of it.

    Attributes:
        ended: whether no more text comes.
        was_cut: whether the answer ended because it had become too long.
        num_calls: how many tool calls have begun.
        last_marker: the last marker that was found among several, as it came.
        last_space: the white space before it, which was dropped.
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
        self._held: tuple[int, int] | None = None  # deltas and calls that came before what is held
        self.ended = self.was_cut = False
        self.num_calls = 0
        self.last_marker = self.last_space = ""

    # What comes and goes.

    def add(self, text: str) -> None:
        """Adds text of the answer, in which control tokens are `spelled`."""
        self._buffer += text

    def take_deltas(self) -> list[Delta]:
        """The deltas since the last call."""
        if self._held is None:
            deltas, self._deltas = self._deltas, []
            return deltas
        count, num_calls = self._held
        deltas, self._deltas, self._held = self._deltas[:count], self._deltas[count:], (0, num_calls)
        return deltas

    def hold(self) -> None:
        """Keeps what is emitted from now on, until `release` or `drop`."""
        self._held = len(self._deltas), self.num_calls

    def release(self) -> None:
        """Lets go what was held."""
        self._held = None

    def drop(self) -> None:
        """Forgets what was held."""
        assert self._held is not None, "something is held"
        count, self.num_calls = self._held
        del self._deltas[count:]
        self._held = None

    def emit(self, kind: TextKind, text: str) -> None:
        """Adds text to what the answer has become; control tokens in it have none."""
        if _OPEN in text:
            text = _CONTROL.sub("", text)
        if text:
            self._deltas.append(kind(text))

    def emit_named(self, kind: TextKind, marker: str) -> None:
        """Adds a marker as text, control tokens in it by their names."""
        self.emit(kind, named(marker))

    def start_call(self, name: str) -> None:
        """Begins a tool call."""
        name = without_surrogates(name)
        self._deltas.append(ToolStart(self.num_calls, f"call_{secrets.token_hex(12)}", name))
        self.num_calls += 1

    def emit_arguments(self, text: str) -> None:
        """Adds text to the arguments of the newest call."""
        if _OPEN in text:
            text = _CONTROL.sub("", text)
        text = without_surrogates(text)
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
        yield from self.rest_as(lambda text: self.emit(ContentDelta, text))

    def rest_as(self, use: Callable[[str], None]) -> Reading:
        """All that is left, up to the end of the answer: calls a function with each piece of it."""
        while True:
            use(self._take(len(self._buffer)))
            if self.ended:
                return
            yield

    def put_back(self, text: str) -> None:
        """Puts text back that has just been read, or before what comes."""
        self._buffer, left = text + self._buffer, len(text)
        while left and self._taken:
            last = self._taken.pop()
            if len(last) > left:
                self._taken.append(last[:-left])
            left -= min(left, len(last))

    def text_until(self, kind: TextKind, names: "Sequence[str] | Markers", *, exact: bool = False) -> Parse[str | None]:
        """Emits text up to the first of some markers, which is read too.

        Args:
            kind: what the text is.
            names: of the markers.
            exact: whether white space before the marker belongs to the text; at the end of the answer it always does.

        Returns:
            The marker's name; None at the end of the answer.
        """
        return (yield from self.each_until(lambda text: self.emit(kind, text), names, exact=exact))

    def each_until(
        self, use: Callable[[str], None], names: "Sequence[str] | Markers", *, exact: bool = False
    ) -> Parse[str | None]:
        """As `text_until`, calling a function with each piece of the text."""
        markers = names if isinstance(names, Markers) else Markers({self.marker(name): name for name in names})
        space = "" if exact else _SPACE
        while True:
            match = markers.pattern.search(self._buffer)
            if match is not None and not self.ended and markers.may_be_longer(self._buffer, match):
                use(self._take(match.start()).rstrip(space))
                yield
                continue
            if match is not None:
                before = self._take(match.start())
                text = before.rstrip(space)
                use(text)
                self._take(len(match[0]))
                self.last_marker, self.last_space = match[0], before[len(text) :]
                return markers.names[match[0]]
            use(self._take(len(self._buffer) if self.ended else markers.num_certain(self._buffer, space)))
            if self.ended:
                return None
            yield

    def first_of(self, markers: "Markers") -> Parse[str | None]:
        """The name of the marker that comes next, perhaps after white space: then both are read, else nothing."""
        while True:
            text = self._buffer.lstrip(_SPACE)
            match = markers.pattern.match(text)
            is_open = match is None or markers.may_be_longer(text, match)
            if is_open and not self.ended and markers.may_begin(text):
                yield
                continue
            if match is None:
                return None
            self.last_marker, self.last_space = match[0], self._take(len(self._buffer) - len(text))
            self._take(match.end())
            return markers.names[match[0]]

    def next_is(self, chunks: Sequence[str]) -> Parse[bool]:
        """Whether texts come next, between which there may be white space: then all are read, else nothing."""
        while True:
            at, is_open = 0, False
            for chunk in chunks:
                at = _after_space(self._buffer, at)
                if self._buffer.startswith(chunk, at):
                    at += len(chunk)
                    continue
                if self.ended or not chunk.startswith(self._buffer[at:]):
                    return False
                is_open = True
                break
            if not is_open:
                self._take(at)
                return True
            yield

    def one_space(self, text: str) -> Reading:
        """Drops white space if it comes next."""
        while not self.ended and len(self._buffer) < len(text) and text.startswith(self._buffer):
            yield
        if self._buffer.startswith(text):
            self._take(len(text))

    def peek(self) -> str:
        """What has come and has not been read."""
        return self._buffer

    def take(self, length: int) -> str:
        """Reads some of what has come."""
        return self._take(length)

    def position(self) -> int:
        """The place up to which has been read, for `back_to`; `mark` ends its use."""
        return len(self._taken)

    def back_to(self, position: int) -> None:
        """Puts back all that has been read since a place. Nothing may have been emitted since then."""
        again = "".join(self._taken[position:])
        del self._taken[position:]
        self._buffer = again + self._buffer

    def raw_since_mark(self) -> str:
        """What has been read since `mark`, exactly as it came."""
        return "".join(self._taken)

    def skip_space(self) -> Reading:
        """Drops white space up to the next other text."""
        while True:
            self._take(len(self._buffer) - len(self._buffer.lstrip(_SPACE)))
            if self._buffer or self.ended:
                return
            yield

    def begins_with(self, name: str) -> Parse[bool]:
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

    def next_sign(self) -> Parse[str]:
        """The next character that is no white space, which stays; nothing at the end of the answer."""
        yield from self.skip_space()
        return self._buffer[:1]

    def take_sign(self) -> None:
        """Reads the character that `next_sign` has returned."""
        self._take(1)

    def json_value(self, use: Callable[[str], None]) -> Parse[bool]:
        """Reads a JSON value, calling a function with each piece of it.

        Returns:
            Whether it is complete; else the answer has ended, or something comes that no value has.
        """
        value = JsonValue()
        while True:
            end = value.feed(self._buffer)
            text = self._take(len(self._buffer) if end is None else end)
            for at in reversed(value.raw):
                text = text[:at] + json.dumps(text[at])[1:-1] + text[at + 1 :]
            use(text)
            if end is not None or self.ended:
                return value.is_complete
            yield

    def loose_value(self, scan: LooseScan, use: Callable[[str], None]) -> Parse[bool]:
        """Reads a value whose end is found by a scan, calling a function with each piece of it.

        Returns:
            Whether its end was found.
        """
        while True:
            use(self._take(scan.feed(self._buffer, is_last=self.ended)))
            if scan.has_ended or self.ended:
                return scan.has_ended
            yield

    def _take(self, length: int) -> str:
        text, self._buffer = self._buffer[:length], self._buffer[length:]
        if text:
            self._taken.append(text)
        return text


class Markers:
    """Texts to look for, by one expression.

    Attributes:
        names: what is told when one is found, by the texts.
        pattern: finds the first one, of those at the same place the longest.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        """Prepares the search; of no texts, nothing is ever found."""
        self.names = dict(names)
        ordered = sorted(self.names, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, ordered)) or "(?!)")
        self._beginnings = {name[:size] for name in ordered for size in range(1, len(name))}
        self._longer = {name for name in ordered if name in self._beginnings}
        self._most = max(map(len, ordered), default=1) - 1
        self._first = re.compile(f"[{re.escape(''.join({name[0] for name in ordered}))}]" if ordered else "(?!)")

    def may_begin(self, text: str) -> bool:
        """Whether all of a text may be the beginning of a marker."""
        return not text or text in self._beginnings

    def may_be_longer(self, text: str, match: "re.Match[str]") -> bool:
        """Whether what was found may turn out to be the beginning of a longer marker, once more text has come."""
        return match[0] in self._longer and text[match.start() :] in self._beginnings

    def num_certain(self, text: str, space: str) -> int:
        """How many characters can be neither a marker's beginning nor white space before one."""
        at = max(0, len(text) - self._most)
        while (match := self._first.search(text, at)) is not None:
            if text[match.start() :] in self._beginnings:
                return len(text[: match.start()].rstrip(space)) if space else match.start()
            at = match.end()
        return len(text.rstrip(space)) if space else len(text)


def _after_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at

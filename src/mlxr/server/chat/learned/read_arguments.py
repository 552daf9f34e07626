"""Reads arguments that are written one by one, and tells them as one JSON object."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlxr.server.chat.answer_reader import AnswerReader, Markers, Parse, Reading
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.learned.answer_form import ArgumentForm, Slot
from mlxr.server.chat.learned.argument_schemas import arguments_of, may_be
from mlxr.server.chat.learned.nested_tags import nested
from mlxr.server.chat.learned.spelled_form import SpelledForm, is_special
from mlxr.server.chat.loose_value import LooseScan, as_json

_MOST = 256
"""Characters of an argument's name."""
_VERBATIM, _VERBATIM_END = "<![CDATA[", "]]>"
"""XML's way to write text that has markers: some models know it."""
_VERBATIM_ENDS = Markers({_VERBATIM_END: _VERBATIM_END})
_MOST_ENDS = 32
"""Ends of an argument that may stand within the texts of its value."""
_STRINGS = re.compile(r"\"(?:[^\"\\]|\\.)*(?P<double>\"?)|'(?:[^'\\]|\\.)*(?P<single>'?)", re.DOTALL)


@dataclass(frozen=True)
class _Middle:
    """What stands between the name of an argument and its value, and what that says of the value.

    `start` and `parts` are the parts of what begins the argument, and of the middle; `kinds` are types of values.
    """

    form: ArgumentForm
    start: list[str]
    parts: list[str]
    text: str
    kinds: list[str]


class ArgumentReader:
    """Reads the arguments of one answer's calls."""

    def __init__(self, form: SpelledForm, reader: AnswerReader, job: ChatJob) -> None:
        """Takes the form, and what was asked."""
        self._reader, self._job = reader, job
        spell, calls = form.spell, form.form.calls
        argument = calls.argument
        assert argument is not None, "calls with arguments one by one"
        self._between = spell.chunks(argument.between)
        self._call_end = form.call_end()
        # Models leave out parts of it.
        first = spell.text(argument.start.strip())
        parts = (part for part in self._call_end[1:] if is_special(part) and not first.startswith(part))
        self._ends = [*self._call_end[:1], *parts]
        self._middles: list[_Middle] = []
        for each in [argument] if argument.text is None else [argument.text, argument]:
            kinds: dict[str, list[str]] = {}
            for kind, text in each.middles:
                if each is not argument or argument.text is None or kind != "string":
                    kinds.setdefault(text, []).append(kind)
            for text in sorted(kinds, key=len, reverse=True):
                self._middles.append(_Middle(each, spell.chunks(each.start), spell.chunks(text), text, kinds[text]))
        self._starts = [list(start) for start in dict.fromkeys(tuple(middle.start) for middle in self._middles)]
        self._starts.sort(key=len, reverse=True)
        self._spell = spell
        self._quote = None
        if argument.quote is not None:
            self._quote = spell.text(argument.quote[0]), spell.text(argument.quote[1])

    def read(self, name: str) -> Reading:
        """Reads the arguments of a call of a tool, up to the call's end, which stays."""
        reader, schemas = self._reader, schemas_of(self._job, name)
        reader.emit_arguments("{")
        is_first = True
        while True:
            if (yield from self._has_ended()):
                if reader.was_cut and not reader.peek():
                    return
                break
            if not is_first and self._between:
                yield from reader.next_is(self._between)
            start = yield from self._begins()
            if start is None:
                if not (yield from self._skip_to_start()):
                    if reader.ended and not reader.peek():
                        return
                    break
                continue
            key = yield from self._key(start)
            if key is None:
                if reader.ended and not any(end in reader.peek() for end in self._ends):
                    begun = json.dumps(reader.take(len(reader.peek())), ensure_ascii=False)[:-1]
                    reader.emit_arguments(f"{'' if is_first else ', '}{begun}" if begun != '"' else "")
                    return  # it breaks off in a name
                break
            reader.emit_arguments(f"{'' if is_first else ', '}{json.dumps(key, ensure_ascii=False)}: ")
            is_first = False
            if not (yield from self._value(key, schemas.get(key))):
                return
        reader.emit_arguments("}")

    def _begins(self) -> Parse[list[str] | None]:
        """What begins an argument, which is read; None if nothing does."""
        for start in self._starts:
            if not start or (yield from self._reader.next_is(start)):
                return start
        return None

    def _has_ended(self) -> Parse[bool]:
        """Whether the end of the call comes next, which stays."""
        reader = self._reader
        yield from reader.skip_space()
        if not self._call_end:
            return reader.ended and not reader.peek()
        kept = reader.position()
        for end in self._ends:
            if (yield from reader.next_is([end])):
                reader.back_to(kept)
                return True
        return reader.ended and not reader.peek()

    def _skip_to_start(self) -> Parse[bool]:
        """What is neither an argument nor the end is told as it comes; whether there is an argument after it."""
        reader = self._reader
        begins = [start[0] for start in self._starts]
        for begin in begins:
            if reader.peek().startswith(begin):  # it goes on as no argument does
                reader.emit_arguments(reader.take(len(begin)))
        ends = {end: end for end in (*begins, *self._ends)}
        found = yield from reader.each_until(reader.emit_arguments, Markers(ends))
        if found is not None:
            reader.put_back(found)
        return found in begins

    def _key(self, start: list[str]) -> Parse[str | None]:
        """The name of an argument after what begins it, and what follows it; None if there is none."""
        reader = self._reader
        middles = [middle for middle in self._middles if middle.start == start]
        firsts = {text: text for middle in middles for text in (middle.parts[:1] or [middle.text]) if text}
        stops = Markers(firsts | {end: "" for end in self._call_end[:1]} | {"\n\n": ""})
        pieces: list[str] = []
        kept = reader.position()
        found = yield from reader.each_until(pieces.append, stops)
        key = "".join(pieces).strip().strip("\"'" if not start else "")
        if not found or not key or len(key) > _MOST or "\n" in key:
            reader.back_to(kept)
            return None
        reader.put_back(found)
        for middle in middles:
            if (yield from reader.next_is(middle.parts)):
                self._middle = middle
                return key
        yield from reader.next_is([found])
        self._middle = middles[-1]
        return key

    def _value(self, key: str, schema: Any) -> Parse[bool]:
        """Reads a value and its end; whether it has one. Text is told as it comes, other values when they are whole."""
        if self._quote is not None:
            return (yield from self._loose())
        reader = self._reader
        end = "".join(key if part is Slot.KEY else self._spell.text(str(part)) for part in self._middle.form.end)
        before, after = _space_after(self._middle.text), end[: len(end) - len(end.lstrip())]
        markers = self._end_markers(end, after)
        if before:
            yield from reader.one_space(before)
        kinds = self._middle.kinds
        is_text = kinds == ["string"] or ("string" in kinds and is_text_schema(schema))
        if "string" in types_of(schema) and (yield from reader.next_is([_VERBATIM])):
            found = yield from self._verbatim(markers)
        elif is_text:
            reader.emit_arguments('"')
            found = yield from reader.each_until(self._emit_text, markers, exact=True)
            if found is not None:
                reader.emit_arguments('"')
        else:
            pieces: list[str] = []
            found = yield from reader.each_until(pieces.append, markers, exact=True)
            if found is not None and is_within_string(text := "".join(pieces)):
                found = yield from self._goes_on(found, text, markers, pieces)
            reader.emit_arguments(self._decoded("".join(pieces), schema))
        if found == "stop":
            reader.put_back(reader.last_marker)
        return found is not None

    def _verbatim(self, markers: Markers) -> Parse[str | None]:
        """Reads a text that is taken as it is, and what ends the argument: nothing else ends the text."""
        reader = self._reader
        ends = Markers(markers.names | dict.fromkeys(self._call_end[:1], "stop"))
        reader.emit_arguments('"')
        while (yield from reader.each_until(self._emit_text, _VERBATIM_ENDS, exact=True)) is not None:
            found = yield from reader.first_of(ends)
            if found is not None or (reader.ended and not reader.peek().strip()):
                reader.emit_arguments('"')
                return found
            if not (yield from reader.next_is([_VERBATIM])):  # else it is XML's way to write the end itself
                self._emit_text(_VERBATIM_END)
        return None

    def _goes_on(self, found: str, text: str, markers: Markers, pieces: list[str]) -> Parse[str]:
        """Looks for a later end at which the value is whole, where the first one stands within one of its strings.

        Args:
            found: the end.
            text: the value up to it.
            markers: the ends.
            pieces: the value's, which are changed if it goes on.
        """
        reader, kept, marker = self._reader, self._reader.position(), self._reader.last_marker
        longer, last, later = text, marker, list[str]()
        for _ in range(_MOST_ENDS):
            later.clear()
            again = yield from reader.each_until(later.append, markers, exact=True)
            if again is None:
                break
            longer, last = f"{longer}{last}{''.join(later)}", reader.last_marker
            if (as_json if self._middle.form.has_python else _plain_json)(longer) is not None:
                pieces[:] = [longer]
                return again
        reader.back_to(kept)
        reader.last_marker = marker
        return found

    def _end_markers(self, end: str, after: str) -> Markers:
        if not end.strip():
            starts = [start[0] for start in self._starts if start]
            stops = {text: "stop" for text in (*self._between[:1], *starts, *self._call_end[:1])}
            return Markers(({end: "end"} if end else {}) | stops)
        bare = end.strip()
        return Markers({after + bare: "end", bare: "end"})

    def _emit_text(self, text: str) -> None:
        self._reader.emit_arguments(escaped(text))

    def _decoded(self, text: str, schema: Any) -> str:
        argument = self._middle.form
        if argument.item is not None and (text.lstrip().startswith(argument.start) or not text.strip()):
            return json.dumps(nested(text, argument, schema), ensure_ascii=False)
        is_sure = isinstance(schema, Mapping) and "string" not in types_of(schema)
        value = as_json(text) if is_sure or argument.has_python else _plain_json(text)
        is_meant = value is not None and (value[:1] != '"' or is_sure or not is_open(schema))
        if value is not None and is_meant and (is_sure or may_be(json.loads(value), schema)):
            return value
        return f'"{escaped(text)}"'

    def _loose(self) -> Parse[bool]:
        """Reads a value whose strings are quoted."""
        reader = self._reader
        pieces: list[str] = []
        yield from reader.skip_space()
        end = "".join(map(str, self._middle.form.end))
        starts = [start[0] for start in self._starts if start]
        ends = [*(self._spell.chunks(end)[:1] or [end]), *self._between[:1], *starts, *self._call_end[:1]]
        has_end = yield from reader.loose_value(LooseScan(self._quote, tuple(ends)), pieces.append)
        text = "".join(pieces)
        value = as_json(text, self._quote)
        if value is None:
            value = json.dumps(text.strip(), ensure_ascii=False)
            opening = next((each for each in (*(self._quote or ())[:1], '"', "'") if text.startswith(each)), "")
            if opening and not has_end:  # it breaks off in a text
                value = json.dumps(text[len(opening) :], ensure_ascii=False)[:-1]
        reader.emit_arguments(value)
        for chunk in self._spell.chunks(end):
            yield from reader.next_is([chunk])
        return has_end


def schemas_of(job: ChatJob, name: str) -> Mapping[str, Any]:
    """The schemas of a tool's arguments, as far as they are known."""
    for tool in job.tools:
        if tool["function"]["name"] == name:
            return arguments_of(tool["function"].get("parameters"))
    return {}


def types_of(schema: Any) -> set[str]:
    """The types that a schema allows, as far as it names them; all that it may be if it does not."""
    if not isinstance(schema, Mapping):
        return {"string", "any"}
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return set().union(*(types_of(part) for part in schema[key]))
    if "enum" in schema and isinstance(schema["enum"], list) and "type" not in schema:
        return {"string" if isinstance(value, str) else "other" for value in schema["enum"]}
    if "const" in schema and "type" not in schema:
        return {"string" if isinstance(schema["const"], str) else "other"}
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind}
    return set(kind) if isinstance(kind, list) else {"string", "any"}


def is_text_schema(schema: Any) -> bool:
    """Whether a value can only be text."""
    return types_of(schema) == {"string"}


def is_open(schema: Any) -> bool:
    """Whether a value may be text or something else."""
    return "string" in types_of(schema) and isinstance(schema, Mapping)


def escaped(text: str) -> str:
    """A text as it stands in a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def is_within_string(text: str) -> bool:
    """Whether a list or an object breaks off in a string."""
    if not text.lstrip().startswith(("[", "{")):
        return False
    last = None
    for last in _STRINGS.finditer(text):  # noqa: B007
        pass
    return last is not None and last.end() == len(text) and not (last["double"] or last["single"])


def _plain_json(text: str) -> str | None:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    return text.strip()


def _space_after(text: str) -> str:
    return text[len(text.rstrip()) :]

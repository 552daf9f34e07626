"""Reads calls in a form that was learned; text that turns out to be no call is left to the caller."""

import json
import re

from mlxr.server.chat.answer_reader import AnswerReader, Markers, Parse, Reading
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.chat.json_call import CallState, as_object, read_json_call
from mlxr.server.chat.learned.answer_form import ObjectKeys, Slot, Style
from mlxr.server.chat.learned.read_arguments import ArgumentReader
from mlxr.server.chat.learned.spelled_form import SpelledForm, Trigger, is_special
from mlxr.server.chat.loose_value import LooseScan, as_json

_NAME = re.compile(r"[^\s<>{}()\[\]\"',\ud800]*")
_MOST = 128
"""Characters of a name or an id."""
_KEYS = ObjectKeys("name", "arguments")


class CallReader:
    """Reads the calls of one answer.

    Attributes:
        is_sure: whether all that was read since it was set is known to be calls: whole JSON, between their markers.
    """

    def __init__(self, form: SpelledForm, reader: AnswerReader, job: ChatJob) -> None:
        """Takes the form, and what was asked."""
        self._form, self._reader, self._job = form, reader, job
        self._calls = form.form.calls
        self.is_sure = True
        spell = form.spell
        self._end, self._between = spell.chunks(self._calls.end), spell.chunks(self._calls.between)
        end = "".join(self._end[:1])
        self._may_repeat_end = is_special(end) and not any(begin.startswith(end) for begin in form.triggers)
        self._section_end = form.of_section(self._calls.section_end)
        self._names = job.tool_names if form.is_bare or form.is_plain else None
        if self._calls.argument is not None:
            self._arguments = ArgumentReader(form, reader, job)

    def read(self, trigger: Trigger) -> Parse[bool]:
        """Reads calls whose first marker has been read; whether there is one.

        Args:
            trigger: what the marker begins.
        """
        reader, form, in_section = self._reader, self._form, trigger.in_section
        kept = reader.position()
        if not (yield from self._first(trigger)):
            reader.back_to(kept)
            return (yield from self._others())
        while True:
            yield from self._read_end()
            if not in_section:
                return True
            kept = reader.position()
            if self._section_end and (yield from reader.next_is(self._section_end)):
                return True
            has_between = bool(self._between) and (yield from reader.next_is(self._between))
            if form.start:
                begins = yield from reader.next_is(form.start)
            else:
                begins = has_between or not self._between
            if not begins or not (yield from self._one()):
                reader.back_to(kept)
                yield from self._rest_of_section()
                return True

    def _first(self, trigger: Trigger) -> Parse[bool]:
        """Reads the first call after a marker; whether there is one."""
        start = self._form.start
        if not (yield from self._begins(trigger.rest)):
            return False
        if trigger.in_section and start and not (yield from self._begins(start)):
            return False
        return (yield from self._one())

    def _begins(self, parts: list[str]) -> Parse[bool]:
        """Whether what begins a call comes next, which is read; its last part may be missing if it is no marker."""
        if (yield from self._reader.next_is(parts)):
            return True
        return bool(parts) and not is_special(parts[-1]) and (yield from self._reader.next_is(parts[:-1]))

    def _others(self) -> Parse[bool]:
        """Reads calls as most models write them, one JSON object or a list, where there are none in the form."""
        is_list = yield from self._reader.next_is(["["])
        if not (yield from self._object()):
            return False
        if is_list:
            yield from self._reader.next_is(["]"])
        yield from self._read_end()
        yield from self._rest_of_section()
        return True

    def read_bare(self) -> Parse[bool]:
        """Reads a call that nothing announces; whether there is one. If not, nothing is read."""
        reader = self._reader
        kept = reader.position()
        if (yield from self._one()):
            yield from self._read_end()
            return True
        reader.back_to(kept)
        return False

    def _rest_of_section(self) -> Reading:
        """The end of a section after which something else comes than a call."""
        for chunk in self._section_end:
            yield from self._reader.next_is([chunk])

    def _read_end(self) -> Reading:
        """The end of a call, of which models leave out parts, or write it twice, or with a brace too many."""
        reader, end = self._reader, self._end
        if self._calls.style is Style.OBJECT and end and (yield from reader.next_is(["}", *end])):
            return
        for chunk in end:
            yield from reader.next_is([chunk])
        while self._may_repeat_end and (yield from reader.next_is(end)):
            pass

    def _one(self) -> Parse[bool]:
        """Reads a call after what begins it; whether it is one."""
        if self._calls.style is Style.OBJECT:
            return (yield from self._object())
        return (yield from self._named())

    def _object(self) -> Parse[bool]:
        """Reads a call that is a JSON object, and more such objects after it, as some models write them."""
        reader, keys, kept = self._reader, self._calls.keys, self._reader.position()
        if self._calls.has_python:
            return (yield from self._python_object())
        is_double = yield from reader.next_is(["{", "{"])
        if not is_double and not (yield from reader.begins_with("{")):
            return False
        if (yield from reader.next_sign()) == "'":
            reader.back_to(kept)
            return (yield from self._python_object())
        state = yield from read_json_call(reader, self._names, keys)
        if state is CallState.BROKEN:
            yield from self._broken()
        if is_double and state is CallState.COMPLETE:
            yield from reader.next_is(["}"])
        while state is CallState.COMPLETE and not self._form.is_bare:
            kept = reader.position()
            if not (yield from reader.next_is(["{"])) and not (yield from reader.next_is([",", "{"])):
                break
            state = yield from read_json_call(reader, self._names, keys)
            if state is CallState.NO_CALL:
                reader.back_to(kept)
            elif state is CallState.BROKEN:
                yield from self._broken()
            if state is not CallState.COMPLETE:
                return True
        return state is not CallState.NO_CALL

    def _python_object(self) -> Parse[bool]:
        """Reads a call that is a dict of Python, which is told when it is whole."""
        reader, keys = self._reader, self._calls.keys or _KEYS
        pieces: list[str] = []
        if (yield from reader.next_sign()) != "{":
            return False
        yield from reader.loose_value(LooseScan(None, ("<",)), pieces.append)
        value = json.loads(as_json("".join(pieces)) or "null")
        for key in keys.around:
            value = value.get(key) if isinstance(value, dict) else None
        name = value.get(keys.name) if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(name, str) or keys.arguments not in value:
            return False
        reader.start_call(name)
        reader.emit_arguments(as_object(json.dumps(value[keys.arguments], ensure_ascii=False)))
        return True

    def _broken(self) -> Reading:
        """Arguments that are no JSON are told as they came, up to the end of the call."""
        self.is_sure, reader = False, self._reader
        end = (self._end or self._section_end)[:1]
        if not end:
            yield from reader.rest_as(reader.emit_arguments)
            return
        if (yield from reader.each_until(reader.emit_arguments, Markers({end[0]: end[0]}))) is not None:
            reader.put_back(end[0])

    def _named(self) -> Parse[bool]:
        reader, body = self._reader, self._calls.body
        place = 1 if body and isinstance(body[0], str) else 0
        name: str | None = None
        while place < len(body):
            part = body[place]
            if part is Slot.ARGUMENTS:
                break
            if isinstance(part, str):
                chunks = self._form.spell.chunks(part)
                after = body[place + 2] if place + 2 < len(body) else None
                if not (yield from reader.next_is(chunks)):
                    # An id with what announces it may be missing, and so may what announces the arguments.
                    if body[place + 1] in (Slot.ID, Slot.NUMBER) and isinstance(after, str):
                        place += 2
                        chunks = self._form.spell.chunks(after)
                        if (yield from reader.next_is(chunks)):
                            place += 1
                            continue
                    if self._calls.style is not Style.NAMED or (yield from reader.next_sign()) != "{":
                        return False
            else:
                word = yield from self._word(self._form.after(place))
                if word is None:
                    return False
                if part is Slot.NAME:
                    name = name or word
            place += 1
        if name is None or (self._names is not None and name not in self._names):
            return False
        return (yield from self._read_arguments(name))

    def _word(self, stops: list[str]) -> Parse[str | None]:
        """A name or an id, before one of some texts; None if there is none."""
        reader = self._reader
        yield from reader.skip_space()
        while True:
            text = reader.peek()
            match = _NAME.match(text)
            assert match is not None, "it may be empty"
            word = match[0]
            inner = [at for stop in stops if (at := word.find(stop)) > 0]
            if inner:
                word = word[: min(inner)]
            elif match.end() == len(text) and not reader.ended and len(word) <= _MOST:
                yield
                continue
            after = text[len(word) :]
            rest = after.lstrip()
            if not word or len(word) > _MOST:
                return None
            if any(after.startswith(stop) or rest.startswith(stop) for stop in stops):
                reader.take(len(word))
                return word
            if reader.ended or not any(stop.startswith(rest) for stop in stops):
                return None
            yield

    def _read_arguments(self, name: str) -> Parse[bool]:
        reader = self._reader
        if self._calls.argument is not None:
            self.is_sure = False  # whatever comes is an argument
            reader.start_call(name)
            yield from self._arguments.read(name)
            return True
        if self._form.is_bare and (yield from reader.next_sign()) != "{":
            return False
        reader.start_call(name)
        if (sign := (yield from reader.next_sign())) != "{":
            reader.emit_arguments("{}" if sign else "")  # some models write none if there are none
            return True
        if self._calls.has_python:
            yield from self._python()
        elif not (yield from reader.json_value(reader.emit_arguments)):
            yield from self._broken()
        return True

    def _python(self) -> Reading:
        """Arguments that are a dict of Python: they are told when they are whole."""
        reader = self._reader
        pieces: list[str] = []
        yield from reader.loose_value(LooseScan(None, ("}",)), pieces.append)
        text = "".join(pieces)
        reader.emit_arguments(as_json(text) or text)

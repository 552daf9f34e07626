"""Derives the form of calls from what a template renders of calls that differ in one thing each."""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from mlxr.server.chat.learned.answer_form import CallForm, ObjectKeys, Parts, Slot, Style
from mlxr.server.chat.learned.learn_arguments import learn_argument
from mlxr.server.chat.learned.lexemes import common_end, common_start, lexemes
from mlxr.server.chat.learned.probe import IDS, KEYS, NAMES, VALUE, Probe, a_call, as_json

_SIGNS = {Slot.NAME: "\ue000", Slot.ID: "\ue001", Slot.NUMBER: "\ue002", Slot.ARGUMENTS: "\ue003"}
_SLOT = {sign: slot for slot, sign in _SIGNS.items()}
_ARGUMENTS = {KEYS[0]: VALUE}
_MOST_NESTED = 6
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class _Place:
    """Where the part of a call lies that has its name and arguments: `text[start:end]`.

    `arguments`: where these lie, if they are one object.
    """

    start: int
    end: int
    arguments: tuple[int, int] | None = None
    keys: ObjectKeys | None = None
    has_python: bool = False
    has_text: bool = False


def learn_calls(probe: Probe, turn_end: str) -> CallForm | None:
    """The form of calls; None if it is none that is understood.

    Args:
        probe: whose form of messages has been found.
        turn_end: what ends the assistant's messages.
    """
    for num_calls in (1,) if probe.form.is_one_call_each else (3, 2, 1):  # some templates write more of them oddly
        text = probe.answer([a_call(number, _ARGUMENTS) for number in range(num_calls)])
        if text is None:
            continue
        text = without_end(text, probe, turn_end)
        for find in (_find_object, _find_named, _find_keyed):
            places = _places(text, num_calls, find)
            if places and (form := _learn(probe, text, places)):
                return form
    return None


def _places(text: str, num_calls: int, find: Any) -> list[_Place]:
    places: list[_Place] = []
    for number in range(num_calls):
        place = find(text, places[-1].end if places else 0, number)
        if place is None:
            return []
        places.append(place)
    return places


def _with_numbered_starts(text: str, places: list[_Place]) -> list[_Place]:
    """The places, with the numbers before calls in them."""
    gaps = [lexemes(text[one.end : other.start]) for one, other in pairwise(places)]
    if len(gaps) < 2 or len(gaps[0]) != len(gaps[1]):
        return places
    differing = [at for at, pair in enumerate(zip(*gaps, strict=True)) if pair[0] != pair[1]]
    if not differing or not all(_NUMBER.fullmatch(gaps[0][at]) for at in differing):
        return places
    size = sum(map(len, gaps[0][differing[0] :]))
    return [replace(place, start=place.start - size) for place in places]


def _learn(probe: Probe, text: str, places: Sequence[_Place]) -> CallForm | None:
    places = _with_numbered_starts(text, list(places))
    bodies = [_marked(text[place.start : place.end], place) for place in places]
    gaps = [text[one.end : other.start] for one, other in pairwise(places)]
    head, tail = text[: places[0].start], text[places[-1].end :]
    head, gaps, tail = _normal(head), [_normal(gap) for gap in gaps], _normal(tail)
    first_number, bodies = _with_numbers(bodies)
    if len(set(bodies)) > 1 or len(set(gaps)) > 1:
        return None
    section_start, start, end, between, section_end = _cut(head, gaps[0] if gaps else None, tail)
    return _form(probe, places[0], bodies[0], (section_start, start, end, between, section_end), first_number)


def _form(
    probe: Probe, place: _Place, body: str, frame: tuple[str, str, str, str, str], first_number: int
) -> CallForm | None:
    section_start, start, end, between, section_end = frame
    is_single = probe.form.is_one_call_each
    parts = _parts(body)
    if place.keys is not None or place.arguments is not None:
        style = Style.OBJECT if place.keys is not None else Style.NAMED
        if parts is None or any(sign in "".join(frame) for sign in _SLOT):
            return None
        return CallForm(
            style,
            section_start,
            section_end,
            start,
            parts,
            end,
            between,
            first_number,
            place.keys,
            None,
            is_single,
            place.has_python,
            place.has_text,
        )
    if any(sign in "".join(frame) for sign in _SLOT):
        return None
    return learn_argument(probe, frame, first_number, is_single=is_single)


def without_end(text: str, probe: Probe, turn_end: str) -> str:
    """The text of an answer with calls, without what ends the assistant's messages."""
    last = max(text.rfind(word) for word in (*NAMES, VALUE))
    places = [text.find(name, last) for name in (*probe.ends, turn_end.strip()) if name]
    found = [place for place in places if place >= 0]
    return text[: min(found)] if found else text


def _cut(head: str, gap: str | None, tail: str) -> tuple[str, str, str, str, str]:
    """Section start, start, end, what is between, section end: from the texts before, between and after calls."""
    if gap is None:
        return "", head, tail, "", ""
    end, start = common_start(gap, tail), common_end(gap, head)
    if len(end) + len(start) > len(gap):
        start = gap[len(end) :] if end.strip() else start
        end = gap[: len(gap) - len(start)]
    between = gap[len(end) : len(gap) - len(start)]
    return head.removesuffix(start) if start else head, start, end, between, tail[len(end) :]


def _normal(text: str) -> str:
    """A text with signs in the place of names and ids."""
    for slot, words in ((Slot.NAME, NAMES), (Slot.ID, IDS)):
        for word in words:
            text = text.replace(word, _SIGNS[slot])
    return text


def _marked(body: str, place: _Place) -> str:
    if place.arguments is None:
        return _normal(body)
    start, end = (at - place.start for at in place.arguments)
    return _normal(body[:start]) + _SIGNS[Slot.ARGUMENTS] + _normal(body[end:])


def _with_numbers(bodies: Sequence[str]) -> tuple[int, list[str]]:
    """The bodies with a sign in the place of their numbers, and the first number."""
    pieces = [lexemes(body) for body in bodies]
    if len(pieces) < 2 or len({len(piece) for piece in pieces}) > 1:
        return 0, list(bodies)
    first = 0
    for place in range(len(pieces[0])):
        column = [piece[place] for piece in pieces]
        if len(set(column)) > 1 and all(map(_NUMBER.fullmatch, column)):
            numbers = [int(number) for number in column]
            if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
                first = numbers[0]
                for piece in pieces:
                    piece[place] = _SIGNS[Slot.NUMBER]
    return first, ["".join(piece) for piece in pieces]


def _parts(body: str) -> Parts | None:
    parts: list[str | Slot] = []
    for piece in re.split(f"([{''.join(_SLOT)}])", body):
        if piece:
            parts.append(_SLOT.get(piece, piece))
    return tuple(parts) if Slot.NAME in parts and Slot.ARGUMENTS in parts else None


# Where calls lie.


def _find_object(text: str, start: int, number: int) -> _Place | None:
    """The outermost JSON object after a place that has the name of a call."""
    for at, end, value in _objects(text, start):
        if NAMES[number] in text[at:end] and (keys := _keys(value, number)):
            for inner, inner_end, inner_value in _values(text, at + 1, end):
                if inner_value == _ARGUMENTS:
                    has_python = _loaded(text[at:end]) is None
                    return _Place(at, end, (inner, inner_end), keys, has_python, text[inner] == '"')
    return None


def _find_named(text: str, start: int, number: int) -> _Place | None:
    """The first slot and the arguments as one object, of JSON or Python."""
    name = text.find(NAMES[number], start)
    if name < 0:
        return None
    for at, end, value in _objects(text, name):
        if value == _ARGUMENTS:
            return _Place(_first_slot(text, start, number), end, (at, end), None, _loaded(text[at:end]) is None)
    return None


def _find_keyed(text: str, start: int, number: int) -> _Place | None:
    """The first slot, and the value of the argument."""
    name = text.find(NAMES[number], start)
    key = text.find(KEYS[0], name)
    value = text.find(VALUE, key)
    if name < 0 or key < 0 or value < 0:
        return None
    return _Place(_first_slot(text, start, number), value + len(VALUE))


def _first_slot(text: str, start: int, number: int) -> int:
    return min(at for word in (NAMES[number], IDS[number]) if (at := text.find(word, start)) >= 0)


def _objects(text: str, start: int) -> Iterator[tuple[int, int, Any]]:
    """The JSON objects and Python dicts of a text, outer ones first: where they lie, and what they are."""
    at = text.find("{", start)
    while at >= 0:
        found = _decoded(text, at)
        if found is not None:
            yield at, *found
        at = text.find("{", at + 1)


def _values(text: str, start: int, end: int) -> Iterator[tuple[int, int, Any]]:
    """Objects within an object, and texts that are JSON of one."""
    yield from _objects(text[:end], start)
    at = text.find('"', start, end)
    while at >= 0:
        found = _decoded(text, at)
        if found is not None and isinstance(found[1], str):
            with suppress(ValueError):
                yield at, found[0], json.loads(found[1])
        at = text.find('"', at + 1, end)


def _decoded(text: str, at: int) -> tuple[int, Any] | None:
    """The JSON value, or the dict of Python, that begins at a place; and where it ends."""
    try:
        value, end = json.JSONDecoder().raw_decode(text, at)
        return end, value
    except ValueError:
        pass
    end = at
    for _ in range(_MOST_NESTED if text[at] == "{" else 0):
        if (end := text.find("}", end) + 1) == 0:
            break
        with suppress(ValueError, SyntaxError):
            return end, ast.literal_eval(text[at:end])
    return None


def _keys(value: Any, number: int, around: tuple[str, ...] = ()) -> ObjectKeys | None:
    """The keys by which an object tells a call."""
    if not isinstance(value, Mapping):
        return None
    arguments = next((key for key, item in value.items() if _is_arguments(item)), None)
    if arguments is not None and arguments == NAMES[number]:
        return ObjectKeys(None, "", around)
    name = next((key for key, item in value.items() if item == NAMES[number]), None)
    if name is not None and arguments is not None:
        beside = tuple(key for key in value if key not in (name, arguments))
        return ObjectKeys(name, arguments, around, beside)
    for key, item in value.items():
        if isinstance(item, Mapping) and (found := _keys(item, number, (*around, key))):
            return found
    return None


def _is_arguments(item: Any) -> bool:
    return item in (_ARGUMENTS, as_json(_ARGUMENTS)) or (isinstance(item, str) and _loaded(item) == _ARGUMENTS)


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None

"""Derives how a template writes arguments one by one: `<parameter=KEY>`, `KEY="..."` and the like."""

import ast
import json
import re
from dataclasses import dataclass
from typing import Any

from mlxr.server.chat.learned.answer_form import ArgumentForm, CallForm, Parts, Slot, Style
from mlxr.server.chat.learned.lexemes import common_end, common_start, lexemes
from mlxr.server.chat.learned.probe import IDS, KEYS, NAMES, VALUE, Probe, a_call, as_json

_NAME, _ID, _NUMBER, _KEY = "\ue000", "\ue001", "\ue002", "\ue004"
_SLOTS = {_NAME: Slot.NAME, _ID: Slot.ID, _NUMBER: Slot.NUMBER, _KEY: Slot.KEY}
_INNER, _WORD = "qainnerqa", "qawordqa"
_FIRST, _SECOND = 73519, 73528
_VALUES = {"boolean": True, "null": None, "object": {_INNER: [_WORD, 7]}, "array": [_WORD, 7]}
KINDS = ("string", "number", *_VALUES)
Frame = tuple[str, str, str, str, str]
"""Section start, start, end, what is between calls, section end."""


@dataclass(frozen=True)
class _Turns:
    """Texts of one call each, without what begins and ends all of them."""

    probe: Probe
    prefix: str

    def of(self, arguments: dict[str, Any]) -> str | None:
        text = self.probe.answer([a_call(0, arguments)])
        if text is None:
            return None
        text = text.replace(NAMES[0], _NAME).replace(IDS[0], _ID)
        for key in KEYS:
            text = text.replace(key, _KEY)
        return text[len(self.prefix) :] if text.startswith(self.prefix) else None


def learn_argument(probe: Probe, frame: Frame, first_number: int, *, is_single: bool) -> CallForm | None:
    """The form of calls whose arguments are written one by one; None if it is none that is understood.

    Args:
        probe: whose form of messages has been found.
        frame: the texts around calls.
        first_number: of the first call, if calls are numbered.
        is_single: whether a message takes one call.
    """
    section_start, start, _, between, section_end = frame
    turns = _Turns(probe, section_start + start)
    two, one, none = (turns.of(given) for given in ({KEYS[0]: _FIRST, KEYS[1]: _SECOND}, {KEYS[0]: _FIRST}, {}))
    string = turns.of({KEYS[0]: VALUE})
    if two is None or one is None or string is None:
        return None
    split = re.fullmatch(f"(.*?){_KEY}(.*?){_FIRST}(.*?){_KEY}(.*?){_SECOND}(.*)", _after_key(two), re.DOTALL)
    single = re.fullmatch(f"(.*?){_KEY}(.*?){_FIRST}(.*)", one, re.DOTALL)
    text = re.fullmatch(f"(.*?){_KEY}(.*?){VALUE}(.*)", string, re.DOTALL)
    if split is None or single is None or text is None:
        return None
    head, middle, gap, _, tail = split.groups()
    gap = gap.replace("\ue005", _KEY)
    end, between_keys, key_start = _cut(gap, head, tail.replace("\ue005", _KEY))
    name_head = head.removesuffix(key_start) if key_start else head
    rest = single[3][len(end) :]
    if single[1] != head or not single[3].startswith(end) or _NAME not in name_head:
        return None
    call_end = _without_end(rest, frame, none, name_head)
    middles, quote = {"number": middle}, None
    if text[2].startswith(middle) and text[3].endswith(single[3]) and len(text[3]) > len(single[3]):
        quote = text[2][len(middle) :], text[3][: len(text[3]) - len(single[3])]
        middles["string"] = middle
    elif text[3] == single[3]:
        middles["string"] = text[2]
    else:
        return None
    has_python, item = False, None
    for kind, value in _VALUES.items():
        written = _value(turns.of({KEYS[0]: value}), head, single[3])
        if written is None:
            middles[kind] = middle
            continue
        middles[kind], shown = _split_value(written, value, middles)
        has_python = has_python or (shown != as_json(value) and _python(shown) == value)
        if kind == "object" and shown.startswith(key_start) and key_start:
            item = _item(shown, key_start, middle)
    if first_number or _is_numbered(name_head):
        name_head = _with_number(name_head, first_number)
    argument = ArgumentForm(
        key_start,
        tuple((kind, middles[kind]) for kind in KINDS),
        _parts(end),
        between_keys,
        quote,
        has_python,
        item,
    )
    return CallForm(
        Style.KEYED,
        section_start,
        section_end,
        start,
        (*_parts(name_head), Slot.ARGUMENTS),
        call_end,
        between,
        first_number,
        None,
        argument,
        is_single,
    )


def _after_key(text: str) -> str:
    """A text of two arguments in which keys that come again after their values have another sign."""
    signs = [at for at, sign in enumerate(text) if sign == _KEY]
    kept = set()
    for number in (_FIRST, _SECOND):
        place = text.find(str(number))
        kept.add(max((at for at in signs if at < place), default=-1))
    return "".join("\ue005" if sign == _KEY and at not in kept else sign for at, sign in enumerate(text))


def _cut(gap: str, head: str, tail: str) -> tuple[str, str, str]:
    """The end of an argument, what is between two, and the start of one: from the text between two values."""
    end, start = common_start(gap, tail), common_end(gap, head)
    if len(end) + len(start) > len(gap):
        shorter = gap[: len(gap) - len(start)]
        if shorter.strip() or end.strip():
            end = shorter
        else:
            start = gap[len(end) :]
    return end, gap[len(end) : len(gap) - len(start)], start


def _without_end(rest: str, frame: Frame, none: str | None, name_head: str) -> str:
    """The end of a call, of the text after its last argument's."""
    call_end, section_end = frame[2], frame[4]
    for size in range(len(rest) + 1):  # the end of calls begins within the end of the last argument
        if call_end.endswith(rest[: len(rest) - size]) and rest[: len(rest) - size]:
            return rest[: len(rest) - size]
    del none, name_head
    return rest.removesuffix(section_end) if section_end else rest


def _value(text: str | None, head: str, tail: str) -> str | None:
    """What stands between the key and what follows the value."""
    begin = head + _KEY
    if text is None or not text.startswith(begin) or not text.endswith(tail):
        return None
    return text[len(begin) : len(text) - len(tail)]


def _split_value(written: str, value: Any, middles: dict[str, str]) -> tuple[str, str]:
    """What stands before a value, and the value as it is written."""
    for known in sorted(set(middles.values()), key=len, reverse=True):
        if written.startswith(known):
            return known, written[len(known) :]
    for shown in (as_json(value), json.dumps(value, separators=(",", ":")), str(value)):
        if written.endswith(shown):
            return written[: len(written) - len(shown)], shown
    return middles["number"], ""


def _item(shown: str, key_start: str, middle: str) -> str | None:
    """The name of a list's items in a value that is written as arguments are."""
    found = re.match(
        f"{re.escape(key_start + _INNER + middle)}{re.escape(key_start)}(.+?){re.escape(middle)}{_WORD}", shown
    )
    return found[1] if found else None


def _python(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None


def _is_numbered(head: str) -> bool:
    return any(piece == "0" for piece in lexemes(head))


def _with_number(head: str, first: int) -> str:
    pieces = lexemes(head)
    for place, piece in enumerate(pieces):
        if piece == str(first):
            pieces[place] = _NUMBER
            break
    return "".join(pieces)


def _parts(text: str) -> Parts:
    pieces = re.split(f"([{''.join(_SLOTS)}])", text)
    return tuple(_SLOTS.get(piece, piece) for piece in pieces if piece)

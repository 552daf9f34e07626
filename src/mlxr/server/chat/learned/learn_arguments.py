"""Derives how a template writes arguments one by one: `<parameter=KEY>`, `KEY="..."` and the like."""

import ast
import json
import re
from dataclasses import dataclass, replace
from typing import Any

from mlxr.server.chat.learned.answer_form import ArgumentForm, CallForm, Parts, Slot, Style, ValueForm
from mlxr.server.chat.learned.lexemes import common_end, common_start, lexemes
from mlxr.server.chat.learned.probe import IDS, KEYS, NAMES, OTHER_VALUE, VALUE, Probe, a_call, as_json
from mlxr.server.chat.learned.write_values import PYTHON

_NAME, _ID, _NUMBER, _KEY = "\ue000", "\ue001", "\ue002", "\ue004"
_SLOTS = {_NAME: Slot.NAME, _ID: Slot.ID, _NUMBER: Slot.NUMBER, _KEY: Slot.KEY}
_INNER, _WORD = "qainnerqa", "qawordqa"
_FIRST, _SECOND = 73519, 73528
_VALUES = {"boolean": True, "null": None, "object": {_INNER: [_WORD, 7]}, "array": [_WORD, 7]}
KINDS = ("string", "number", *_VALUES)
_NO_ARGUMENT = ArgumentForm("", (), ())
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
    numbers = _Written.of(turns, _FIRST, _SECOND)
    texts = _Written.of(turns, VALUE, OTHER_VALUE)
    string = turns.of({KEYS[0]: VALUE})
    if numbers is None or string is None or _NAME not in numbers.name_head:
        return None
    middles, quote, text = {"number": numbers.middle}, None, None
    begin = numbers.head + _KEY
    found = re.fullmatch(f"(.*?){VALUE}(.*)", string[len(begin) :], re.DOTALL) if string.startswith(begin) else None
    if found is not None and _is_quoted(found, numbers):
        quote = found[1][len(numbers.middle) :], found[2][: len(found[2]) - len(numbers.tail)]
        middles["string"] = numbers.middle
    elif found is not None and found[2] == numbers.tail:
        middles["string"] = found[1]
    elif texts is not None and texts.name_head == numbers.name_head:
        kinds = (("string", texts.middle),)
        text = ArgumentForm(texts.start, kinds, _parts(texts.end), texts.between)
        middles["string"] = numbers.middle
    else:
        return None
    argument = _with_values(turns, numbers, middles, replace(_NO_ARGUMENT, quote=quote, text=text))
    backwards = probe.answer([a_call(0, {KEYS[1]: _SECOND, KEYS[0]: _FIRST})]) or ""
    argument = replace(argument, is_sorted=0 <= backwards.find(KEYS[0]) < backwards.find(KEYS[1]))
    name_head = numbers.name_head
    if first_number or _is_numbered(name_head):
        name_head = _with_number(name_head, first_number)
    return CallForm(
        Style.KEYED,
        section_start,
        section_end,
        start,
        (*_parts(name_head), Slot.ARGUMENTS),
        _without_end(numbers.tail[len(numbers.end) :], frame),
        between,
        first_number,
        None,
        argument,
        is_single,
    )


def _is_quoted(found: "re.Match[str]", numbers: "_Written") -> bool:
    """Whether a string stands between quotes, where a number stands as it is."""
    before, after = found.groups()
    return before.startswith(numbers.middle) and after.endswith(numbers.tail) and len(after) > len(numbers.tail)


def _with_values(turns: _Turns, numbers: "_Written", middles: dict[str, str], argument: ArgumentForm) -> ArgumentForm:
    """The form of an argument with what values of other types show."""
    has_python, item, values = False, None, []
    for kind, value in _VALUES.items():
        written = _value(turns.of({KEYS[0]: value}), numbers.head, numbers.tail)
        if written is None:
            middles[kind] = numbers.middle
            continue
        middles[kind], shown = _split_value(written, value, middles)
        has_python = has_python or (shown != as_json(value) and _python(shown) == value)
        if kind == "object" and shown.startswith(numbers.start) and numbers.start:
            item = _item(shown, numbers.start, numbers.middle)
        elif form := _value_form(kind, shown, value, argument.quote):
            if kind in ("array", "object"):  # what stands within may be written otherwise
                inner = _value(turns.of({KEYS[0]: [True, False, None]}), numbers.head, numbers.tail)
                inner = (inner or "").removeprefix(middles[kind])
                form = replace(form, words=_words(inner, form.comma) or form.words)
            values.append((kind, form))
    kinds = tuple((kind, middles[kind]) for kind in KINDS)
    return replace(
        argument,
        start=numbers.start,
        middles=kinds,
        end=_parts(numbers.end),
        between=numbers.between,
        has_python=has_python,
        item=item,
        values=tuple(values),
    )


def _value_form(kind: str, shown: str, value: Any, quote: tuple[str, str] | None) -> ValueForm | None:
    """How values of a type are written, by one of them; None if they are JSON, or it is not understood."""
    try:
        if json.loads(shown) == value:
            return None
    except ValueError:
        pass
    if kind in ("boolean", "null"):
        return PYTHON if _python(shown) is value and shown else None
    found = re.fullmatch(rf"(.*?)\[(\S*?){_WORD}(.+?)7\](.*)", shown, re.DOTALL)
    if found is None:
        return None
    head, opening, rest, _ = found.groups()
    closing = quote[1] if quote is not None and opening == quote[0] else opening
    form = PYTHON if opening == PYTHON.quote[0] else ValueForm((opening, closing), (opening, closing))
    if not opening or not rest.startswith(closing):
        return None
    form = replace(form, comma=rest.removeprefix(closing))
    if kind == "array":
        return form
    begin = re.fullmatch(rf"\{{(\S*?){_INNER}(.+)", head, re.DOTALL)
    if begin is None:
        return None
    end = closing if begin[1] == opening else begin[1]
    return replace(form, key_quote=(begin[1], end), colon=begin[2].removeprefix(end))


def _words(shown: str, comma: str) -> tuple[str, str, str] | None:
    """How true, false and null are written in a list."""
    parts = shown.removeprefix("[").removesuffix("]").split(comma or ",")
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 and all(parts) else None


@dataclass(frozen=True)
class _Written:
    """How arguments of one type are written: the texts around names and values.

    `head` is all before the first name, `name_head` that without what begins an argument; `tail` is all after the last
    value.
    """

    head: str
    name_head: str
    start: str
    middle: str
    end: str
    between: str
    tail: str

    @staticmethod
    def of(turns: _Turns, first: str | int, second: str | int) -> "_Written | None":
        """Derives it from calls with one argument and with two; None if they do not agree."""
        two, one = turns.of({KEYS[0]: first, KEYS[1]: second}), turns.of({KEYS[0]: first})
        if two is None or one is None:
            return None
        two = _after_key(two, (str(first), str(second)))
        split = re.fullmatch(f"(.*?){_KEY}(.*?){first}(.*?){_KEY}(.*?){second}(.*)", two, re.DOTALL)
        single = re.fullmatch(f"(.*?){_KEY}(.*?){first}(.*)", one, re.DOTALL)
        if split is None or single is None:
            return None
        head, middle, gap, _, tail = (group.replace("\ue005", _KEY) for group in split.groups())
        end, between, start = _cut(gap, head, tail)
        if single[1] != head or not single[3].startswith(end):
            return None
        name_head = head.removesuffix(start) if start else head
        return _Written(head, name_head, start, middle, end, between, single[3])


def _after_key(text: str, values: tuple[str, str]) -> str:
    """A text of two arguments in which keys that come again after their values have another sign."""
    signs = [at for at, sign in enumerate(text) if sign == _KEY]
    kept = set()
    for value in values:
        place = text.find(value)
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


def _without_end(rest: str, frame: Frame) -> str:
    """The end of a call, of the text after its last argument's."""
    call_end, section_end = frame[2], frame[4]
    for size in range(len(rest) + 1):  # the end of calls begins within the end of the last argument
        if call_end.endswith(rest[: len(rest) - size]) and rest[: len(rest) - size]:
            return rest[: len(rest) - size]
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

"""Reads a tool call that is a JSON object: `{"name": ..., "arguments": {...}}`, any order; arguments as they come."""

import json
from collections.abc import Callable, Collection
from contextlib import suppress
from enum import Enum, auto
from typing import Any

from mlxr.server.chat.answer_reader import AnswerReader, Parse
from mlxr.server.chat.learned.answer_form import ObjectKeys

_ARGUMENTS = ("arguments", "parameters")
_BESIDE = ("type", "id", "index", "tool_call_id", "call_id")
_AROUND = ("function",)
_LONGEST_ESCAPE = r"\ud83c\udf89"


class CallState(Enum):
    """What became of a call.

    Attributes:
        NO_CALL: it is none: nothing has been emitted, and `AnswerReader.since_mark` has its text.
        COMPLETE: its object has ended.
        BROKEN: it has begun, and what follows is no JSON.
    """

    NO_CALL = auto()
    COMPLETE = auto()
    BROKEN = auto()


def read_json_call(
    reader: AnswerReader, names: Collection[str] | None = None, keys: ObjectKeys | None = None
) -> Parse[CallState]:
    """Reads a call whose `{` has been read.

    Args:
        reader: of the answer.
        names: of the tools, where other JSON than calls may come; None where there must be a call.
        keys: by which the model tells calls; the usual ones are understood, too.
    """
    of_name, of_arguments, around, beside = _known(keys)
    name: str | None = None
    early: str | None = None
    has_begun, depth = False, 0
    while True:
        sign = yield from reader.next_sign()
        if sign in (",", "}"):
            reader.take_sign()
            if sign == "}":
                depth -= 1
            if depth < 0:
                break
            continue
        key, is_whole = (yield from _value(reader)) if sign == '"' else ("", False)
        if not is_whole or (yield from reader.next_sign()) != ":":
            is_known = any(f'"{each}"'.startswith(key) for each in (*of_arguments, *around, *beside))
            return _broken_off(reader, name, has_begun, is_known, early, key)
        reader.take_sign()
        key = _loaded(key)
        sign = yield from reader.next_sign()
        if not of_name and name is None and sign == "{":  # the name is the key
            name, key = key, of_arguments[0]
            if names is not None and name not in names:
                return CallState.NO_CALL
        if not has_begun and key not in (*of_name, *of_arguments, *around, *beside):
            return CallState.NO_CALL
        if key in around and sign == "{" and name is None:
            reader.take_sign()
            depth += 1
            continue
        if key in of_arguments and sign == "{" and name is not None and not has_begun:
            reader.start_call(name)
            has_begun = True
            if not (yield from reader.json_value(reader.emit_arguments)):
                return CallState.BROKEN
            continue
        value, is_whole = yield from _value(reader)
        if not is_whole:
            is_arguments = key in of_arguments and not has_begun
            early = _begun_value(value) if is_arguments else early
            return _broken_off(reader, name, has_begun, is_arguments or key in beside, early, f'"{key}": {value}')
        if key in of_name:
            loaded = _loaded(value)
            if not isinstance(loaded, str) or not loaded or (names is not None and loaded not in names):
                return CallState.NO_CALL
            name = loaded
        elif key in of_arguments:
            early = value
    if name is None:
        return CallState.NO_CALL
    if not has_begun:
        reader.start_call(name)
        reader.emit_arguments(as_object(early))
    return CallState.COMPLETE


def _known(keys: ObjectKeys | None) -> tuple[tuple[str, ...], ...]:
    """The keys of names, of arguments, of objects around them, and of what is beside them."""
    if keys is None:
        return ("name",), _ARGUMENTS, _AROUND, _BESIDE
    if keys.name is None:
        return (), ("",), keys.around, ()
    return (keys.name, "name"), (keys.arguments, *_ARGUMENTS), (*keys.around, *_AROUND), (*keys.beside, *_BESIDE)


def as_object(arguments: str | None) -> str:
    """Arguments as the text of a JSON object: some models write none, or the object's text as a JSON string."""
    loaded = None if arguments is None else _loaded(arguments)
    if loaded in (None, ""):
        return "{}"
    if isinstance(loaded, str) and isinstance(_loaded(loaded), dict):
        return loaded
    return arguments or ""


def _value(reader: AnswerReader) -> Parse[tuple[str, bool]]:
    """A JSON value as text, and whether it is whole."""
    pieces: list[str] = []
    use: Callable[[str], None] = pieces.append
    is_whole = yield from reader.json_value(use)
    return "".join(pieces), is_whole


def _broken_off(
    reader: AnswerReader, name: str | None, has_begun: bool, is_part: bool, arguments: str | None, rest: str
) -> CallState:
    """What becomes of a call that is no whole JSON.

    Args:
        reader: of the answer.
        name: of the tool, if it is known.
        has_begun: whether the call has been told.
        is_part: whether what came last may be a part of a call.
        arguments: which have come, and have not been told.
        rest: what came last.
    """
    if is_part and name is not None and reader.ended and not reader.peek():
        if not has_begun:
            reader.start_call(name)
            reader.emit_arguments("" if arguments is None else as_object(arguments))
        return CallState.COMPLETE
    if has_begun:
        reader.emit_arguments(rest)
    return CallState.BROKEN if has_begun else CallState.NO_CALL


def _begun_value(value: str) -> str | None:
    """A value that breaks off: a JSON string as text, others as they came; None: nothing of it has come."""
    if value[:1] != '"':
        return None if "null".startswith(value) else value
    for size in range(len(value), max(0, len(value) - len(_LONGEST_ESCAPE)), -1):
        with suppress(ValueError):
            text = json.loads(f'{value[:size]}"', strict=False)
            text.encode()  # half of a pair of surrogates has no text
            return str(text)
    return None


def _loaded(text: str) -> Any:
    """What a JSON text means; the text itself if it is none."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return text

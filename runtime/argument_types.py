"""Checks the types of arguments: the TypeError names the argument, its value and type, and what was expected."""

import operator
import os
from typing import SupportsIndex

PATH = (str, os.PathLike)
"""The types that name a file or folder."""


def expect(name: str, value: object, accepted: type | tuple[type, ...], words: str) -> None:
    """Checks the type of an argument.

    Args:
        name: the name of the argument.
        value: its value.
        accepted: the types that it may have.
        words: these types in words, for "expected ...".

    Raises:
        TypeError: it has another type.
    """
    if not isinstance(value, accepted):
        raise TypeError(f"{name} is {described(value)}; expected {words}")


def whole_number(name: str, value: object) -> int:
    """A whole number that was given as an argument, as an `int`.

    Raises:
        TypeError: it is not a whole number.
    """
    if type(value) is int:
        return value
    try:
        if isinstance(value, SupportsIndex) and not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise TypeError(f"{name} is {described(value)}; expected a whole number")


def described(value: object) -> str:
    """A value and its type, for a message."""
    text = repr(value)
    text = text if len(text) <= 60 else text[:57] + "..."
    return text if value is None else f"{text}, of type {type(value).__name__}"

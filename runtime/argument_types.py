"""Wrong types in calls from Python: a TypeError that says which argument it is, what it got, and what it takes."""

import operator
import os

PATH = (str, os.PathLike)
"""What names a file or folder."""


def expect(name: str, value: object, accepted: type | tuple[type, ...], words: str) -> None:
    """Checks an argument's type.

    Args:
        name: the argument's.
        value: what was given for it.
        accepted: the types that it may have.
        words: these in words, after "expected".

    Raises:
        TypeError: it has another.
    """
    if not isinstance(value, accepted):
        raise TypeError(f"{name} is {described(value)}; expected {words}")


def whole_number(name: str, value: object) -> int:
    """An argument that is a whole number, as Python's own.

    Raises:
        TypeError: it is none.
    """
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise TypeError(f"{name} is {described(value)}; expected a whole number")


def described(value: object) -> str:
    """A value and its type, for a message."""
    text = repr(value)
    text = text if len(text) <= 60 else text[:57] + "..."
    return text if value is None else f"{text}, of type {type(value).__name__}"

"""Puts off Python's search for garbage, where much is made that stays: imports, a vocabulary, graphs."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_WAITS: ContextVar[bool] = ContextVar("_WAITS", default=False)
"""Whether the search waits because of `garbage_waits`."""
_has_frozen: list[bool] = []
"""Not empty once something was found that others have frozen: to count it takes as long as there is much of it."""


@contextmanager
def garbage_waits() -> Iterator[None]:
    """A context in which Python looks for no garbage: that takes a fifth of imports, and a sixth of a load."""
    collects = gc.isenabled()
    gc.disable()
    token = _WAITS.set(collects or _WAITS.get())
    try:
        yield
    finally:
        _WAITS.reset(token)
        if collects:
            _resume()


@contextmanager
def garbage_waits_no_longer() -> Iterator[None]:
    """A context within the former for what runs for long there: Python looks for garbage again."""
    waits = _WAITS.get()
    if waits:
        _resume()
    try:
        yield
    finally:
        if waits:
            gc.disable()


def _resume() -> None:
    if not _has_frozen and gc.get_freeze_count():
        _has_frozen.append(True)
    if not _has_frozen:
        gc.freeze()  # to and fro: what was made is old then, and the next search leaves it out
        gc.unfreeze()
    gc.enable()

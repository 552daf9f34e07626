"""Puts off Python's search for garbage, where much is made that stays: imports, a vocabulary, graphs."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage_waits() -> Iterator[None]:
    """A context in which Python looks for no garbage: that takes a fifth of imports, and a sixth of a load."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            if not gc.get_freeze_count():
                gc.freeze()  # to and fro: what was made is old then, and the next search leaves it out
                gc.unfreeze()
            gc.enable()

"""A lock on a folder, so that of several processes one at a time replaces what is in it, and none reads meanwhile.

It is advisory (flock on the folder itself), so it leaves no file behind and ends with its process. A folder that cannot
be locked (some network file systems), or whose lock someone else keeps for long, is used without: what is written is
then still whole, because it is renamed into place.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PATIENCE_S = 10.0
_PAUSE_S = 0.005


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """While this lasts, no one else is in `alone_in` or `unchanging` of the same folder."""
    with _locked(folder, fcntl.LOCK_EX):
        yield


@contextmanager
def unchanging(folder: Path) -> Iterator[None]:
    """While this lasts, no one is in `alone_in` of the same folder."""
    with _locked(folder, fcntl.LOCK_SH):
        yield


@contextmanager
def _locked(folder: Path, kind: int) -> Iterator[None]:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        yield
        return
    try:
        _wait_for(descriptor, kind)
        yield
    finally:
        os.close(descriptor)


def _wait_for(descriptor: int, kind: int) -> None:
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                return
            time.sleep(_PAUSE_S)
        except OSError:
            return

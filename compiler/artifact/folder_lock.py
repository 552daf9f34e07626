"""A lock on a folder: one process at a time replaces its contents, and none reads them meanwhile.

The lock is advisory (flock on the folder itself), so it leaves no file behind and ends with its process. If a folder
cannot be locked (some network file systems), or another process keeps the lock for long, we go on without it: readers
still never see half an artifact, because it is renamed into place.
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
    """Excludes every other `alone_in` and `unchanging` of the same folder."""
    with _locked(folder, fcntl.LOCK_EX):
        yield


@contextmanager
def unchanging(folder: Path) -> Iterator[None]:
    """Excludes every `alone_in` of the same folder."""
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

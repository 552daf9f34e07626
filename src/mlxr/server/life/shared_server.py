"""A server that programs share: the first one starts it, and the last one to leave ends it."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from mlxr.compiler.errors import HostError
from mlxr.server.life.control import end_server
from mlxr.server.life.detach import detach
from mlxr.server.life.state_file import StateFile


def start_shared(arguments: Sequence[str]) -> StateFile:
    """Starts a server that ends when the last one that uses it has left; see `using`.

    Args:
        arguments: of `mlxr serve`.

    Raises:
        HostError: it does not start.
        RegistryError: there is no place for its state.
    """
    state, _ = detach(arguments, None)
    _mark(state).touch()
    return state


@contextmanager
def using(state: StateFile) -> Iterator[None]:
    """While it lasts, a shared server goes on. At the end it ends, if nobody else uses it; others stay as they are.

    Each user holds a lock on a file beside the server's, which the system takes away when a user dies.
    """
    mark = _mark(state)
    if not mark.exists():  # somebody has started it to stay
        yield
        return
    lock = os.open(mark, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield
    finally:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # others use it
        else:
            mark.unlink(missing_ok=True)
            with suppress(HostError):  # it may have ended already
                end_server(state)
        finally:
            os.close(lock)


def is_shared(state: StateFile) -> bool:
    """Whether a server ends with those that use it."""
    return _mark(state).exists()


def _mark(state: StateFile) -> Path:
    return state.path.with_suffix(".shared")

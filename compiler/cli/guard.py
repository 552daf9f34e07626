"""Runs a command and turns errors and signals into messages and exit codes.

It imports nothing heavy, so that it is in place before anything slow can be interrupted.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from mlxr.compiler.debug import debug_level
from mlxr.compiler.errors import MlxrError
from mlxr.compiler.text import printable, without_python


def guarded(command: Callable[[], int]) -> int:
    """Runs a command and returns its exit code.

    An MlxrError is printed and gives 1; Ctrl-C gives 130; a closed pipe on standard output gives 141. An
    operating-system error that gets this far concerns the standard streams (a full disk, say) and gives 1. With
    MLXR_DEBUG set, errors keep their traceback.
    """
    _open_closed_streams()
    notes, own = _Notes(logging.WARNING), logging.getLogger("mlxr")
    own.addHandler(notes)
    debug = False
    try:
        debug = debug_level() > 0
        code = command()
        sys.stdout.flush()
        return code
    except MlxrError as error:
        if debug:
            raise
        print(f"error: {printable(without_python(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _discard_output()
        return 141
    except OSError as error:
        if debug:
            raise
        print(f"error: cannot write the output: {error.strerror or error}", file=sys.stderr)
        _discard_output()
        return 1
    finally:
        own.removeHandler(notes)


@contextmanager
def held_interrupts() -> Iterator[None]:
    """A context, for imports, that holds Ctrl-C back: within some, libraries drop it or make it another error."""
    if not _is_pythons_own():
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if came:
            raise KeyboardInterrupt


@contextmanager
def noted_interrupts() -> Iterator[Callable[[], None]]:
    """A context whose function raises Ctrl-C again if Python dropped it.

    Python drops, and prints, an exception that comes within a destructor or a callback. This one is not printed here.
    """
    shows, came = sys.unraisablehook, list[int]()

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        signal.default_int_handler(number, frame)

    def show(dropped: "sys.UnraisableHookArgs") -> None:
        if dropped.exc_type is not KeyboardInterrupt:
            shows(dropped)

    def check() -> None:
        if came:
            raise KeyboardInterrupt

    if not _is_pythons_own():
        yield check
        return
    signal.signal(signal.SIGINT, note)
    sys.unraisablehook = show
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = shows


def _is_pythons_own() -> bool:
    """Whether Ctrl-C raises KeyboardInterrupt in this thread, and nobody has changed that."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


class _Notes(logging.Handler):
    """Prints log records to standard error without a prefix: their texts say whether they are notes or warnings."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


def _open_closed_streams() -> None:
    """Redirects standard streams that the caller closed to /dev/null; Python sets them to None."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 (open to the end)


def _discard_output() -> None:
    """Discards buffered output; otherwise Python reports the error again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

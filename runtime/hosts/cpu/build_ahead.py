"""Builds a program in a thread of its own, while the rest of its artifact is still being compiled.

Compilers are other processes, which lose nothing to Python's lock. Whoever loads the library next takes the result.
"""

import ctypes
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from contextlib import contextmanager

from mlxr.compiler.artifact import Program
from mlxr.runtime.hosts.cpu.build import load_library
from mlxr.runtime.hosts.cpu.compile_units import Tick
from mlxr.runtime.hosts.entry import BeginBuild

_POLL_S = 0.5


class _EndedError(Exception):
    """The build was ended: nobody needs the library any more."""


class _Build:
    """A library that is being built, or found in the cache, in a thread."""

    def __init__(self, text: str, name: str) -> None:
        self._library: Future[ctypes.CDLL] = Future()
        self._ended = threading.Event()
        self._told: tuple[str, float] | None = None
        self._thread = threading.Thread(target=self._run, args=(text, name), name="mlxr-build", daemon=True)
        self._thread.start()

    def _run(self, text: str, name: str) -> None:
        try:
            self._library.set_result(load_library(text, name, self._tick))
        except BaseException as error:
            self._library.set_exception(error)

    def _tick(self, compiler: str, seconds: float) -> None:
        self._told = (compiler, seconds)
        if self._ended.is_set():
            raise _EndedError

    def wait(self, tick: Tick | None) -> ctypes.CDLL | None:
        """The library; None if the build was ended.

        Raises:
            HostError: as `load_library`.
        """
        while True:
            try:
                return self._library.result(_POLL_S)
            except NotYetError:
                if tick is not None and self._told is not None:
                    tick(*self._told)
            except _EndedError:
                return None

    def end(self) -> None:
        """Ends compilers that still run."""
        self._ended.set()
        self._thread.join()


_builds: dict[str, _Build] = {}
"""Those that nobody has taken yet, by text."""


@contextmanager
def building_ahead() -> Iterator[BeginBuild]:
    """See `HostEntry`."""
    begun: dict[str, _Build] = {}

    def begin(program: Program, sources: Mapping[str, str], name: str) -> None:
        (text,) = sources.values()
        if text not in _builds:
            _builds[text] = begun[text] = _Build(text, name)

    try:
        yield BeginBuild(begin)
    finally:
        for text, build in begun.items():
            if _builds.get(text) is build:
                del _builds[text]
            build.end()


def take_library(text: str, name: str, tick: Tick | None = None) -> ctypes.CDLL:
    """The library of a C text: the one that is being built, or as `load_library` finds it.

    Args:
        text: one translation unit.
        name: the model's name, for file names and messages.
        tick: called while a compiler runs.

    Raises:
        HostError: as `load_library`.
    """
    build = _builds.pop(text, None)
    library = None if build is None else build.wait(tick)
    return load_library(text, name, tick) if library is None else library

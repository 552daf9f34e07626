"""Processes that compile (nvrtc_worker.py), one for each text that is compiled at the same time, while models load."""

import ctypes
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from mlxr.runtime.hosts.cuda import nvrtc_worker
from mlxr.runtime.hosts.cuda.nvrtc_worker import compile_text


class _Worker(NamedTuple):
    process: "subprocess.Popen[bytes]"
    asked: IO[bytes]
    answers: IO[bytes]


class Compilers:
    """The processes. Each is begun when all others are busy, and ends when nobody wants them any more.

    Mutable state: those that rest, and how many want them, which a lock guards.
    """

    def __init__(self) -> None:
        """Begins none."""
        self._resting, self._wanted, self._lock = list[_Worker](), 0, threading.Lock()

    @contextmanager
    def wanted(self) -> Iterator[None]:
        """In this context, texts are compiled by processes; outside of it, within this one."""
        with self._lock:
            self._wanted += 1
        try:
            yield
        finally:
            with self._lock:
                self._wanted -= 1
                ended, self._resting = ([], self._resting) if self._wanted else (self._resting, [])
            _end(*ended)

    def compile(self, library: ctypes.CDLL, name: str, source: bytes, options: Sequence[str]) -> tuple[int, bytes, str]:
        """See `compile_text`. What a process cannot do, because it cannot begin or was ended, is done here."""
        place, python = _path_of(library), _python()
        if place is None or python is None:
            return compile_text(library, name, source, options)
        with self._lock:
            is_wanted, worker = self._wanted > 0, self._resting.pop() if self._resting else None
        if not is_wanted:
            return compile_text(library, name, source, options)
        try:
            worker = worker or _begin(python)
            answer = _ask(worker, place, name, source, options)
        except (OSError, ValueError):
            if worker is not None:
                _end(worker)
            return compile_text(library, name, source, options)
        except BaseException:
            if worker is not None:
                _end(worker)
            raise
        with self._lock:
            if rests := self._wanted > 0:
                self._resting.append(worker)
        if not rests:
            _end(worker)
        return answer


COMPILERS = Compilers()
"""Of this process."""


def _python() -> str | None:
    """Python's program; None where another program contains Python: begun once more, it would do its own work."""
    program, is_frozen = sys.executable or "", bool(getattr(sys, "frozen", False))
    return program if not is_frozen and Path(program).name.startswith(("python", "pypy")) else None


def _begin(python: str) -> _Worker:
    command = [python, "-I", "-S", nvrtc_worker.__file__]
    environment = os.environ | {"CUDA_CACHE_DISABLE": "1"}  # we keep what is compiled ourselves
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL  # of what a process cannot do nobody need be told
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing, env=environment)
    assert process.stdin is not None and process.stdout is not None, "they are pipes"
    return _Worker(process, process.stdin, process.stdout)


def _ask(worker: _Worker, library: str, name: str, source: bytes, options: Sequence[str]) -> tuple[int, bytes, str]:
    """A worker's answer.

    Raises:
        OSError: it has ended.
        ValueError: its answer is broken off.
    """
    message = {"library": library, "name": name, "options": list(options), "size": len(source)}
    worker.asked.write(json.dumps(message).encode() + b"\n" + source)
    worker.asked.flush()
    answer = json.loads(worker.answers.readline())
    cubin = worker.answers.read(answer["size"])
    if len(cubin) != answer["size"]:
        raise ValueError("it ended in the middle of an answer")
    return answer["status"], cubin, answer["messages"]


def _end(*workers: _Worker) -> None:
    """Ends processes, which may be compiling something that nobody waits for. Nobody waits for their ends either."""
    for worker in workers:
        worker.process.kill()
    with suppress(RuntimeError):  # there are no threads left: the processes end nevertheless
        if workers:
            threading.Thread(target=_bury, args=workers, name="mlxr-ended", daemon=True).start()


def _bury(*workers: _Worker) -> None:
    for worker in workers:
        for pipe in (worker.asked, worker.answers):
            with suppress(OSError):
                pipe.close()
        worker.process.wait()


class _Symbol(ctypes.Structure):
    """Dl_info of dladdr: the file that has an address, and what is there."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _path_of(library: ctypes.CDLL) -> str | None:
    """The file of a library that is loaded: another process may not find it by name, and others may have that name."""
    found = _Symbol()
    try:
        known = ctypes.CDLL(None).dladdr(ctypes.cast(library.nvrtcCreateProgram, ctypes.c_void_p), ctypes.byref(found))
    except (AttributeError, TypeError):
        return None
    path = os.fsdecode(found.file) if known and found.file else ""
    return path if Path(path).is_absolute() else None

"""A process of its own for work on input that cannot be trusted, with limits on its memory and CPU time.

Within a process nothing can be stopped while C code runs, and a stack that overflows ends it. So such work is done by a
script in another process (`limited_worker`), which may be killed. It gets none of the user's environment.
"""

import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from mlxr.runtime.sealed import limited_worker

_LOG = logging.getLogger(__name__)
_START_SECONDS = 60.0
_KEPT = ("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "TZ")


class ProcessEndedError(Exception):
    """The process could not do the work, and has ended. The text says why, as in: it `took more than 2 s`."""


class LimitedProcess:
    """A process that answers questions, one at a time. Several threads must not use it at once."""

    def __init__(self, script: str | Path, *, memory_bytes: int, cpu_seconds: float) -> None:
        """Starts it, without waiting.

        Args:
            script: a Python file that imports nothing of MLXR. Its `answerer()` returns the function that answers a
                question: JSON objects, both. With `IS_SEALED = True` it can open nothing then, where the system
                sees to that.
            memory_bytes: the most memory that it may take.
            cpu_seconds: the most CPU time for one question.

        Raises:
            ProcessEndedError: it cannot start.
        """
        self._memory_bytes, self._cpu_seconds = memory_bytes, cpu_seconds
        self._pending, self._is_ready = b"", False
        # -P: the script's folder has modules with common names.
        command = [sys.executable, "-P", limited_worker.__file__, str(script), str(memory_bytes), str(cpu_seconds)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={key: os.environ[key] for key in _KEPT if key in os.environ},
            )
        except OSError as error:
            raise ProcessEndedError(f"cannot start a process: {error.strerror or error}") from error
        self._end = weakref.finalize(self, _end, self._process)

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    def ask(self, question: Mapping[str, Any], wall_seconds: float) -> dict[str, Any]:
        """The answer to a question.

        If the question is interrupted, the process is ended: else its answer would be taken for that to the next one.

        Args:
            question: a JSON object.
            wall_seconds: how long the answer may take.

        Raises:
            ProcessEndedError: a limit was exceeded, or the process crashed.
        """
        try:
            if not self._is_ready:
                told = json.loads(self._line(_START_SECONDS, "did not start"))
                self._is_ready = True
                if "unsealed" in told:
                    _LOG.debug("a limited process could open files and sockets: %s", told["unsealed"])
            self._send(json.dumps(question).encode() + b"\n")
            answer: dict[str, Any] = json.loads(self._line(wall_seconds, f"took more than {wall_seconds:g} s"))
        except BaseException:
            self.close()
            raise
        return answer

    def close(self) -> None:
        """Ends the process, as does dropping the last reference to it."""
        self._end()

    def _send(self, question: bytes) -> None:
        assert self._process.stdin is not None, "it is a pipe"
        try:
            self._process.stdin.write(question)
            self._process.stdin.flush()
        except BrokenPipeError:
            self._fail()

    def _line(self, seconds: float, late: str) -> bytes:
        """The next line from the process, which must come within so many seconds."""
        assert self._process.stdout is not None, "it is a pipe"
        descriptor = self._process.stdout.fileno()
        end = time.monotonic() + seconds
        pieces = [self._pending]
        while b"\n" not in pieces[-1]:
            readable, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
            if not readable:
                raise ProcessEndedError(late)
            piece = os.read(descriptor, 1 << 20)
            if not piece:
                self._fail()
            pieces.append(piece)
        line, _, self._pending = b"".join(pieces).partition(b"\n")
        return line

    def _fail(self) -> NoReturn:
        """Raises the error for a process that has ended."""
        code = self._process.wait()
        if code in (-signal.SIGPROF, -signal.SIGXCPU):
            raise ProcessEndedError(f"took more than {self._cpu_seconds:g} s of CPU time")
        if code in (-signal.SIGSEGV, -signal.SIGBUS):
            raise ProcessEndedError("is nested too deeply")
        raise ProcessEndedError(f"ended its process ({code}), as by exceeding {self._memory_bytes >> 20} MiB of memory")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for stream in (process.stdin, process.stdout):
        assert stream is not None, "both are pipes"
        with suppress(BrokenPipeError):  # what it has not read
            stream.close()
    process.wait()

"""Chat templates, which turn a conversation into the text that a model was trained to continue.

A template is a Jinja2 program that comes with a model, and so it cannot be trusted. It runs in a process of its own
(`template_worker`) with limited time, memory and output. A template that exceeds a limit only causes an error.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mlxr.compiler.errors import ChatTemplateError
from mlxr.runtime.tokenizer import template_worker

MOST_BYTES = 512 << 20
MOST_CHARACTERS = 4 << 20
CPU_SECONDS = 2
WALL_SECONDS = 20.0
_START_SECONDS = 60.0

Message = Mapping[str, Any]
"""`role` (system, user, assistant, ...) and `content`, as templates read them."""


class ChatTemplate:
    """One template. Its process starts when first needed, or with `start`. Several threads must not use it at once."""

    def __init__(self, text: str, source: str, tokens: Mapping[str, str] | None = None) -> None:
        """Makes a template; nothing runs yet.

        Args:
            text: the Jinja2 program.
            source: the file that it comes from, for messages.
            tokens: the text of special tokens by the names that templates use: `bos_token`, `eos_token`, ...
        """
        self.text, self.source = text, source
        self._tokens = dict(tokens or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""
        self._ready = False

    def start(self) -> None:
        """Starts the process without waiting for it, so that it loads while the caller does other things."""
        if self._process is not None:
            return
        limits = [str(limit) for limit in (MOST_BYTES, MOST_CHARACTERS, CPU_SECONDS)]
        # -P: the script's folder has modules with common names. Templates get none of the user's environment.
        kept = ("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "TZ")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", template_worker.__file__, *limits],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={key: os.environ[key] for key in kept if key in os.environ},
            )
        except OSError as error:
            raise ChatTemplateError(
                f"the process that renders chat templates cannot start: {error.strerror or error}"
            ) from error
        self._pending, self._ready = b"", False

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> str:
        """The text of a conversation.

        Args:
            messages: in order.
            add_generation_prompt: whether to add the text that precedes an answer of the assistant.
            variables: further variables for the template.

        Raises:
            ChatTemplateError: the template is faulty, refuses the conversation, or takes too long, too much memory, or
                writes too much text.
        """
        known = {"tools": None, "documents": None} | self._tokens | variables
        known |= {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
        self.start()
        answer = self._ask(json.dumps({"template": self.text, "variables": known}).encode() + b"\n")
        if "text" in answer:
            text: str = answer["text"]
            return text
        where = f", line {answer['line']}" if answer["line"] else ""
        raise ChatTemplateError(f"chat template of {self.source}{where}: {answer['error']}")

    def close(self) -> None:
        """Ends the process. Rendering again starts a new one."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            assert stream is not None, "both are pipes"
            stream.close()
        process.wait()

    def __enter__(self) -> "ChatTemplate":
        """Itself; leaving closes it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes it."""
        self.close()

    def __del__(self) -> None:
        self.close()

    def _ask(self, request: bytes) -> dict[str, Any]:
        """The answer of the process to a question.

        If the question is interrupted, the process is ended: else its answer would be taken for that to the next one.
        """
        try:
            if not self._ready:
                self._line(_START_SECONDS, "did not start")
                self._ready = True
            self._send(request)
            answer: dict[str, Any] = json.loads(self._line(WALL_SECONDS, f"took more than {WALL_SECONDS:g} s"))
        except BaseException:
            self.close()
            raise
        return answer

    def _send(self, request: bytes) -> None:
        assert self._process is not None and self._process.stdin is not None, "started above"
        try:
            self._process.stdin.write(request)
            self._process.stdin.flush()
        except BrokenPipeError:
            self._fail("ended early")

    def _line(self, seconds: float, late: str) -> bytes:
        """The next line from the process, which must come within so many seconds."""
        assert self._process is not None and self._process.stdout is not None, "started above"
        descriptor = self._process.stdout.fileno()
        end = time.monotonic() + seconds
        pieces = [self._pending]
        while b"\n" not in pieces[-1]:
            readable, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
            if not readable:
                self._fail(late)
            piece = os.read(descriptor, 1 << 20)
            if not piece:
                self._fail("ended early")
            pieces.append(piece)
        line, _, self._pending = b"".join(pieces).partition(b"\n")
        return line

    def _fail(self, reason: str) -> None:
        """Raises the error for a process that has not answered."""
        assert self._process is not None, "started above"
        if reason == "ended early":
            code = self._process.wait()
            if code in (-signal.SIGPROF, -signal.SIGXCPU):
                reason = f"took more than {CPU_SECONDS} s of CPU time"
            else:
                reason = f"ended its process ({code}), as by exceeding {MOST_BYTES >> 20} MiB of memory"
        raise ChatTemplateError(f"chat template of {self.source}: it {reason}; it was stopped")

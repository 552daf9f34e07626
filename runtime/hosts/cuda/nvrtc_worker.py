"""Compiles texts by NVRTC in a process of its own, one after the other, as they come on its standard input.

Within a process NVRTC reads one text at a time, whatever the number of threads: 65 ms each, most of it for CUDA's
headers.

This imports nothing of ours, so that a process is there in 20 ms. A message is a JSON object on a line, then as many
bytes as that says: {"library", "options", "name", "size"} and a text; back {"status", "size", "messages"} and a cubin.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

_NICE = 5
"""Whoever asks has other work too, which others wait for: it writes the texts, and reads weights."""


def compile_text(library: ctypes.CDLL, name: str, source: bytes, options: Sequence[str]) -> tuple[int, bytes, str]:
    """Compiles one text. Several threads may do so at the same time, and wait for each other.

    Args:
        library: NVRTC.
        name: the kernel's, in messages.
        source: CUDA C++ text.
        options: of NVRTC.

    Returns:
        NVRTC's status (0: done), the cubin, and the compiler's messages.
    """
    program = ctypes.c_void_p()
    status = int(library.nvrtcCreateProgram(ctypes.byref(program), source, f"{name}.cu".encode(), 0, None, None))
    if status:
        return status, b"", ""
    try:
        encoded = [option.encode() for option in options]
        status = int(library.nvrtcCompileProgram(program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded)))
        messages = _read(library, program, "ProgramLog").replace(b"\0", b"").decode(errors="replace").strip()
        return status, b"" if status else _read(library, program, "CUBIN"), messages
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _read(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw


def main() -> None:
    """Answers until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asks ends this
    os.nice(_NICE)
    asked, answers = sys.stdin.buffer, sys.stdout.buffer
    while line := asked.readline():
        message: dict[str, Any] = json.loads(line)
        source = asked.read(message["size"])
        library = ctypes.CDLL(message["library"])
        status, cubin, messages = compile_text(library, message["name"], source, message["options"])
        answers.write(json.dumps({"status": status, "size": len(cubin), "messages": messages}).encode() + b"\n" + cubin)
        answers.flush()


if __name__ == "__main__":
    main()

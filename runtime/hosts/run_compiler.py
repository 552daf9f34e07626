"""Runs a compiler, and finds the compiler that pip can install."""

import importlib.util
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

TIMEOUT_S = 600.0
"""The largest of our files takes seconds: a compiler that takes longer than this hangs."""
_TICK_S = 0.5
_MOST_LINES = 40
_MOST_CHARACTERS = 6000


def zig_executable() -> str | None:
    """The zig executable inside the `ziglang` wheel of this Python; its `cc` is a clang with headers and libraries."""
    spec = importlib.util.find_spec("ziglang")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        zig = Path(folder) / "zig"
        if zig.is_file():
            return str(zig)
    return None


def _zig_keeps_files(environment: Mapping[str, str]) -> bool:
    """Whether zig has a folder for its own files, or may make it."""
    if "ZIG_GLOBAL_CACHE_DIR" in environment:
        return True
    home = environment.get("HOME")
    caches = environment.get("XDG_CACHE_HOME") or (home and str(Path(home) / ".cache"))
    if not caches:
        return False
    folder = Path(caches, "zig").absolute()
    first = next(path for path in (folder, *folder.parents) if path.exists())
    return first.is_dir() and os.access(first, os.W_OK)


def run_compiler(
    command: Sequence[str],
    folder: Path,
    *,
    cut: bool = False,
    timeout_s: float = TIMEOUT_S,
    tick: Callable[[float], None] | None = None,
) -> str | None:
    """Runs a compiler and waits for it.

    Args:
        command: program and arguments.
        folder: its working folder; zig may keep its own files beside it.
        cut: leave out the end of very long messages.
        timeout_s: seconds after which the compiler is killed, with all processes that it started.
        tick: called now and then with the seconds so far.

    Returns:
        None if it succeeded, else what it printed to standard error, or how it ended.
    """
    environment = dict(os.environ)
    if not _zig_keeps_files(environment):
        environment["ZIG_GLOBAL_CACHE_DIR"] = str(folder.parent / "zig")  # zig has no other place for its own files
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # so that one signal reaches all its processes
        )
    except OSError as error:
        return f"it cannot be started: {error.strerror or error}"
    try:
        output = _wait(process, timeout_s, tick)
    except BaseException:
        _kill(process)
        raise
    if output is None:
        _kill(process)
        return f"it did not finish within {timeout_s:.0f} s"
    output = _cut(output.strip()) if cut else output.strip()
    if process.returncode < 0:
        number = -process.returncode
        return f"it was killed by signal {number} ({signal.strsignal(number) or 'unknown'})\n{output}".strip()
    return (output or f"it ended with code {process.returncode}") if process.returncode else None


def _wait(process: "subprocess.Popen[str]", timeout_s: float, tick: Callable[[float], None] | None) -> str | None:
    """What the process has written to standard error when it ends; None if it takes too long."""
    waited = 0.0
    while True:
        try:
            return process.communicate(timeout=min(_TICK_S, timeout_s))[1]
        except subprocess.TimeoutExpired:
            waited += min(_TICK_S, timeout_s)
            if waited >= timeout_s:
                return None
            if tick is not None:
                tick(waited)


def _kill(process: "subprocess.Popen[str]") -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.communicate()


def _cut(text: str) -> str:
    """The beginning of a long message: the first error is the one to read."""
    lines = text.splitlines()
    short = "\n".join(lines[:_MOST_LINES])[:_MOST_CHARACTERS]
    return text if short == text else f"{short}\n... ({len(lines)} lines in all)"

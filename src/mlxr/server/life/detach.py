"""Starts a server that outlives its terminal."""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mlxr.compiler.errors import HostError
from mlxr.server.life.state_file import StateFile, running_servers, servers_folder
from mlxr.server.log_output import open_own_file

PROGRAM = (sys.executable, "-P", "-m", "mlxr.cli", "serve")
"""`mlxr serve`. -P: else Python would run modules of the current folder, which may be a download."""
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_MOST_SHOWN = 2000


def detach(arguments: Sequence[str], log: Path | None) -> tuple[StateFile, Path]:
    """Starts `mlxr serve` in a process of its own session, and waits until it listens.

    Args:
        arguments: of `mlxr serve`, which writes its log to standard error.
        log: the file for that; None: one in the user's data folder.

    Returns:
        The server, and its log.

    Raises:
        HostError: it ended instead; the message has what it said.
        RegistryError: there is no place for its state.
    """
    path = servers_folder() / "serve.log" if log is None else log
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_own_file(path) as output:
            begin = output.tell()
            process = subprocess.Popen(
                [*PROGRAM, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
    except OSError as error:
        raise HostError(f"{path}: the log cannot be written: {error.strerror or error}") from error
    try:
        return _listening(process, path, begin), path
    except BaseException:  # Ctrl-C too
        process.kill()
        process.wait()
        raise


def _listening(process: "subprocess.Popen[bytes]", log: Path, begin: int) -> StateFile:
    """The state of a server that is starting, as soon as it listens."""
    until = time.monotonic() + _START_SECONDS
    while True:
        code = process.poll()
        for state in running_servers():
            if state.pid == process.pid:
                return state
        if code is not None:
            raise HostError(f"the server did not start (exit code {code}): {_said(log, begin)}")
        if time.monotonic() > until:
            raise HostError(f"the server did not listen within {_START_SECONDS:g} s: {_said(log, begin)}")
        time.sleep(_LOOK_SECONDS)


def _said(path: Path, begin: int) -> str:
    with path.open("rb") as stream:
        stream.seek(begin)
        text = stream.read(_MOST_SHOWN).decode(errors="replace").strip()
    before, error, after = text.rpartition("error: ")  # what it said while all was well is not why it ended
    return (after if error and (not before or before.endswith("\n")) else text) or f"it said nothing; see {path}"

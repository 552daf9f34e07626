"""What running servers leave in the user's data folder, so that other commands find them."""

import json
import os
import platform
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Self

from mlxr.compiler.errors import MlxrError
from mlxr.registry.database import data_folder

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_ANYWHERE = {"0.0.0.0": (socket.AF_INET, "192.0.2.1"), "::": (socket.AF_INET6, "2001:db8::1")}
"""For each such address an address of documentation, the way to which begins at the one that is wanted."""


def servers_folder() -> Path:
    """The folder of these files. It may not exist yet.

    Raises:
        RegistryError: there is no place for it.
    """
    return data_folder() / "servers"


@dataclass(frozen=True)
class StateFile:
    """A server that runs.

    Attributes:
        pid: its process.
        start: when that started, see `start_of`.
        machine: on which it runs: several may share the folder.
        url: where it is asked on this machine.
        port: where it listens.
        grace_seconds: how long its answers may go on after it was told to end.
        token: a key that it takes besides its users' own, for the commands of this user.
    """

    pid: int
    start: str
    machine: str
    url: str
    port: int
    grace_seconds: float
    token: str = field(repr=False)

    @classmethod
    def of_this_process(cls, address: str, port: int, grace_seconds: float, token: str) -> Self:
        """The state of a server in this process.

        Args:
            address: where it listens.
            port: where it listens.
            grace_seconds: see the attributes, as for the token.
            token: a key.
        """
        asked = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
        url = f"http://[{asked}]:{port}" if ":" in asked else f"http://{asked}:{port}"
        return cls(os.getpid(), start_of(os.getpid()) or "", platform.node(), url, port, grace_seconds, token)

    @property
    def path(self) -> Path:
        """The file."""
        return servers_folder() / f"{self.machine}-{self.pid}.json"

    @property
    def is_running(self) -> bool:
        """Whether its process still runs, and is the same one."""
        return start_of(self.pid) == self.start

    def write(self) -> None:
        """Writes the file, which nobody else can read. If that is impossible, a warning says so."""
        try:
            path = self.path
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            new = path.with_suffix(".new")
            new.unlink(missing_ok=True)
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                json.dump(asdict(self), stream)
            new.replace(path)
        except (OSError, MlxrError) as error:
            print(f"warning: mlxr ps and mlxr stop will not find this server: {error}", file=sys.stderr)

    def remove(self) -> None:
        """Removes the file."""
        with suppress(OSError, MlxrError):
            self.path.unlink()


def running_servers() -> list[StateFile]:
    """The servers of this user that run on this machine, by their ports. Files of others that have ended are removed.

    Raises:
        RegistryError: there is no place for the files.
    """
    running = []
    for path in sorted(servers_folder().glob("*.json")):
        state = _read(path)
        if state is None or state.machine != platform.node():
            continue
        if state.is_running:
            running.append(state)
        else:
            state.remove()
    return sorted(running, key=lambda state: state.port)


def _read(path: Path) -> StateFile | None:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return StateFile(**{each.name: values[each.name] for each in fields(StateFile)})
    except (OSError, ValueError, TypeError, KeyError):
        return None  # it is being removed, or not ours


def start_of(pid: int) -> str | None:
    """When a process started, in a form that only serves to compare: ids of processes are used again.

    Args:
        pid: of the process.

    Returns:
        The same text as long as the process runs; None: there is none that runs.
    """
    return _linux_start(pid) if sys.platform == "linux" else _start_by_ps(pid)


def _linux_start(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()  # the name before it may have spaces
    return None if state in {"Z", "X"} else f"{boot} {rest[18]}"


def _start_by_ps(pid: int) -> str | None:
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    told = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"LC_ALL": "C", "PATH": "/bin:/usr/bin"}
    )
    state, _, start = told.stdout.strip().partition(" ")
    return start.strip() or None if state and not state.startswith("Z") else None


def url_for_others(address: str, port: int) -> str:
    """The URL for other machines of this network; empty: this machine alone reaches it, or its own URL is that.

    Args:
        address: where the server listens.
        port: its port.
    """
    if address not in _ANYWHERE:
        return ""
    family, far = _ANYWHERE[address]
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))  # nothing is sent
            own = probe.getsockname()[0]
    except OSError:
        return ""
    return f"http://[{own}]:{port}" if family == socket.AF_INET6 else f"http://{own}:{port}"

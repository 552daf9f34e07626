"""What running servers leave in the user's data folder, so that other commands find them."""

import json
import os
import platform
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Self

from mlxr.compiler.errors import MlxrError
from mlxr.registry.database import data_folder
from mlxr.server.life.processes import start_of


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

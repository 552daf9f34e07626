"""The server as a service of the user's session: a systemd user unit on Linux, a launchd agent on macOS."""

import os
import plistlib
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from mlxr.compiler.errors import HostError
from mlxr.server.life.control import SAVE_SECONDS
from mlxr.server.life.detach import PROGRAM

_KEPT = ("PATH", "PYTHONPATH", "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "XDG_CACHE_HOME", "XDG_DATA_HOME")
"""Variables that the service gets as they are now, besides MLXR's own."""


def this_systems_service() -> "Service":
    """The kind of service of this system.

    Raises:
        HostError: it has neither systemd nor launchd.
    """
    if sys.platform == "darwin":
        return LaunchAgent()
    if sys.platform == "linux":
        return SystemdUnit()
    raise HostError(f"services need systemd or launchd, and {sys.platform} has neither: start mlxr serve --detach")


class Service(ABC):
    """A service of the user, not of the machine. Nothing here needs an administrator."""

    manager: str
    """The program that starts and stops services."""

    @property
    @abstractmethod
    def path(self) -> Path:
        """The file that describes it."""

    @abstractmethod
    def text(self, arguments: Sequence[str], grace_seconds: float) -> str:
        """What the file says.

        Args:
            arguments: of `mlxr serve`.
            grace_seconds: how long answers may go on after the server was told to end.
        """

    @abstractmethod
    def _start(self) -> None:
        """Starts it, now and whenever the user logs in."""

    @abstractmethod
    def _stop(self) -> None:
        """Stops it, for ever."""

    def install(self, text: str) -> None:
        """Writes the file and starts the service; one that runs already is replaced.

        Args:
            text: of the file.

        Raises:
            HostError: the manager is not there or refuses; then there is no file.
        """
        self._need_manager()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise HostError(f"{self.path}: cannot be written: {error.strerror or error}") from error
        try:
            self._start()
        except HostError as error:
            self.path.unlink(missing_ok=True)
            raise HostError(f"{error}; mlxr serve --detach starts a server without {self.manager}") from error

    def remove(self) -> bool:
        """Stops the service and removes its file; returns whether there was one.

        Raises:
            HostError: the manager is not there or refuses.
        """
        if not self.path.exists():
            return False
        self._need_manager()
        self._stop()
        self.path.unlink(missing_ok=True)
        return True

    def _need_manager(self) -> None:
        if shutil.which(self.manager) is None:
            raise HostError(f"{self.manager} is not on this machine: start mlxr serve --detach instead")

    def _ask(self, *words: str, may_fail: bool = False) -> None:
        done = subprocess.run([self.manager, *words], capture_output=True, text=True, check=False)
        if done.returncode and not may_fail:
            said = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
            raise HostError(f"{self.manager} {' '.join(words)}: {said}")


class SystemdUnit(Service):
    """A unit of systemd's user manager."""

    manager = "systemctl"
    _name = "mlxr.service"

    @property
    def path(self) -> Path:
        """See `Service`."""
        base = os.environ.get("XDG_CONFIG_HOME")
        return (Path(base) if base else Path.home() / ".config") / "systemd" / "user" / self._name

    def text(self, arguments: Sequence[str], grace_seconds: float) -> str:
        """See `Service`."""
        command = " ".join(map(_systemd_word, _command(arguments)))
        stop = "infinity" if grace_seconds == float("inf") else f"{grace_seconds + SAVE_SECONDS:g}"
        environment = "".join(
            f"Environment={_systemd_word(f'{name}={value}', is_command=False)}\n"
            for name, value in _environment().items()
        )
        return (
            "[Unit]\n"
            "Description=MLXR serves language models\n"
            "\n"
            "[Service]\n"
            f"ExecStart={command}\n"
            f"WorkingDirectory={str(Path.cwd()).replace('%', '%%')}\n"
            f"{environment}"
            "Restart=on-failure\n"
            "RestartSec=5\n"
            f"TimeoutStopSec={stop}\n"
            "\n"
            "[Install]\n"
            "WantedBy=default.target\n"
        )

    def _start(self) -> None:
        self._ask("--user", "daemon-reload")
        self._ask("--user", "enable", self._name)
        self._ask("--user", "restart", self._name)

    def _stop(self) -> None:
        self._ask("--user", "disable", "--now", self._name)

    def remove(self) -> bool:
        """See `Service`."""
        was_there = super().remove()
        if was_there:
            self._ask("--user", "daemon-reload")
        return was_there


class LaunchAgent(Service):
    """An agent of launchd."""

    manager = "launchctl"
    _label = "mlxr.serve"

    @property
    def path(self) -> Path:
        """See `Service`."""
        return Path.home() / "Library" / "LaunchAgents" / f"{self._label}.plist"

    def text(self, arguments: Sequence[str], grace_seconds: float) -> str:
        """See `Service`."""
        log = str(Path.home() / "Library" / "Logs" / f"{self._label}.log")
        values = {
            "Label": self._label,
            "ProgramArguments": _command(arguments),
            "WorkingDirectory": str(Path.cwd()),
            "EnvironmentVariables": _environment(),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ExitTimeOut": int(min(grace_seconds, 86400) + SAVE_SECONDS),
            "StandardOutPath": log,
            "StandardErrorPath": log,
        }
        return plistlib.dumps(values, sort_keys=False).decode()

    def _start(self) -> None:
        self._ask("bootout", f"{self._domain}/{self._label}", may_fail=True)  # one that runs already
        self._ask("bootstrap", self._domain, str(self.path))

    def _stop(self) -> None:
        self._ask("bootout", f"{self._domain}/{self._label}", may_fail=True)  # it may not run

    @property
    def _domain(self) -> str:
        return f"gui/{os.getuid()}"


def _command(arguments: Sequence[str]) -> list[str]:
    return [*PROGRAM, *arguments]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith("MLXR_")}


def _systemd_word(word: str, is_command: bool = True) -> str:
    """A word as systemd reads it: `%` begins a specifier, and `$` a variable in commands."""
    for character, written in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("%", "%%")):
        word = word.replace(character, written)
    return f'"{word.replace("$", "$$") if is_command else word}"'

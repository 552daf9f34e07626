"""What a rank says of itself when it joins, and what must be the same on all ranks."""

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from mlxr.compiler.errors import HostError


class Identity(NamedTuple):
    """A rank, for people.

    Attributes:
        rank: its number.
        pid: of its process.
        host_name: of its machine.
        machine: tells machines apart, and starts of one.
    """

    rank: int
    pid: int
    host_name: str
    machine: str

    @classmethod
    def here(cls, rank: int) -> "Identity":
        """This process's."""
        boot = ""
        with suppress(OSError):
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return cls(rank, os.getpid(), platform.node(), f"{platform.node()} {boot}")

    @classmethod
    def of(cls, rank: int, facts: Mapping[str, Any]) -> "Identity":
        """What a rank has told.

        Raises:
            HostError: it has not.
        """
        pid, host_name, machine = (facts.get(key) for key in ("pid", "host_name", "machine"))
        if not (isinstance(pid, int) and isinstance(host_name, str) and isinstance(machine, str)):
            raise HostError(f"rank {rank} does not say who it is: it may be of another version")
        return cls(rank, pid, host_name, machine)

    @property
    def facts(self) -> dict[str, object]:
        """What to tell the other ranks."""
        return {"pid": self.pid, "host_name": self.host_name, "machine": self.machine}

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.host_name})"


FIXES = {
    "version": "install the same version on every machine",
    "artifact": "copy the artifact's folder to every machine",
    "spec": "copy the artifact's folder to every machine",
    "weights": "give each rank the same weights",
    "host": "start all ranks with the same --host",
    "block size": "compile the spec again",
}
"""What must be the same on all ranks, and what to do where it is not."""


def check_same(own: Mapping[str, Any], others: Mapping[int, Mapping[str, Any]], names: Mapping[int, str]) -> None:
    """Checks that all ranks say the same.

    Args:
        own: what rank 0 has: by the names of `FIXES`.
        others: what the other ranks say.
        names: of the ranks, for messages.

    Raises:
        HostError: one of them differs; it is named, with both values.
    """
    for rank, facts in others.items():
        for key, value in own.items():
            if (other := facts.get(key)) != value:
                raise HostError(
                    f"{names[rank]} has {key} {_short(other)}, but rank 0 has {key} {_short(value)}: {FIXES[key]}"
                )


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."

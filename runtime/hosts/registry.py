"""Finds the hosts: the folders beside this file that have a module `host` and export a record `HOST`.

Adding a host needs no change here. Commands read the registry for their `--help`, so it loads no MLX and no host.
"""

import functools
import importlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from mlxr.runtime import hosts as package
from mlxr.runtime.hosts.entry import HostEntry

AUTO = "auto"
"""The name that stands for the best host of this machine."""


@functools.cache
def hosts() -> Mapping[str, HostEntry]:
    """The record of each host by its name, in the order in which users are told of them."""
    names = {path.parent.name for folder in package.__path__ for path in Path(folder).glob("*/host.py")}
    entries = [entry for name in names if (entry := _entry(name)) is not None]
    return MappingProxyType({entry.name: entry for entry in sorted(entries, key=lambda e: (e.preference, e.name))})


def host_choices() -> tuple[str, ...]:
    """What users may give for a host: `auto` and the names of all hosts."""
    return (AUTO, *hosts())


def hosts_that_call_mlx() -> str:
    """Their names, for people: where functions of MLX take the place of kernels."""
    return " and ".join(name for name, entry in hosts().items() if entry.calls_mlx)


def _entry(name: str) -> HostEntry | None:
    """The record of a folder; None where the folder holds only what several hosts share."""
    entry = getattr(importlib.import_module(f"{package.__name__}.{name}"), "HOST", None)
    if entry is not None:
        assert isinstance(entry, HostEntry), f"HOST of hosts/{name} is a {type(entry).__name__}, not a HostEntry"
        assert entry.name == name, f"the record in hosts/{name} says that its name is {entry.name!r}"
    return entry

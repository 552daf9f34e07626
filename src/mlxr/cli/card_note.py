"""A note to whoever has an NVIDIA card that does not compute, because MLX lacks its CUDA build."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.registry import AUTO, hosts
from mlxr.runtime.hosts.select import resolve_host

_SECONDS = 5.0
"""How long nvidia-smi may take: it hangs where a card has fallen off the bus."""


def tell_of_card(host: str, used: str | None = None) -> None:
    """Says on standard error what to install, if a card could compute and the CPU does.

    Args:
        host: what was asked for; nothing is said unless that is `auto`.
        used: the host that was chosen; None: what `auto` is here.
    """
    if host != AUTO or (resolve_host(AUTO).name if used is None else used) != "cpu" or not has_card():
        return
    try:
        hosts()["cuda"].check()
    except HostError as error:
        print(f"note: the CPU computes, though this machine has an NVIDIA card: {error}", file=sys.stderr)


def has_card(root: Path = Path("/")) -> bool:
    """Whether there is an NVIDIA card that this process may use, as its driver says.

    Args:
        root: where /proc and /dev are.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False  # somebody has hidden them
    with suppress(OSError):
        # A container sees /proc of its host, but only the devices that it was given.
        known = any((root / "proc/driver/nvidia/gpus").iterdir())
        return known and any(re.fullmatch(r"nvidia\d+", path.name) for path in (root / "dev").iterdir())
    if (program := shutil.which("nvidia-smi")) is None:  # on Windows' Linux there is nothing but this
        return False
    try:
        told = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return False
    return told.returncode == 0 and re.search(r"^GPU \d+:", told.stdout, re.MULTILINE) is not None

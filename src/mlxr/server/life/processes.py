"""Which process a number means: numbers of processes are used again, numbers with a time of start are not."""

import subprocess
import sys
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def start_of(pid: int) -> str | None:
    """When a process started, in a form that only serves to compare.

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

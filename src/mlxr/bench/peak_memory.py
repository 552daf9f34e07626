"""How much memory a process needed. It imports nothing heavy: benchmarks use it in processes without MLXR and MLX."""

import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_bytes() -> int:
    """The most memory that was resident in this process at once, mapped files included."""
    if (told := _status("VmHWM")) is not None:
        return told
    import resource  # noqa: PLC0415 (not on every system)

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


def resident_bytes() -> int:
    """The memory that is resident in this process now, mapped files included; the most so far where nothing tells."""
    told = _status("VmRSS")
    return peak_bytes() if told is None else told


def _status(name: str) -> int | None:
    """A size that Linux tells of this process; None: it is another system."""
    if not _STATUS.is_file():
        return None
    lines = _STATUS.read_text(encoding="utf-8").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)

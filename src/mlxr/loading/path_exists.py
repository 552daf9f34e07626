"""Whether a path that a user or a client has named is there."""

from pathlib import Path


def path_exists(name: str) -> bool:
    """Whether there is a file or folder; also if that cannot be found out, so that whoever opens it says why."""
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return True

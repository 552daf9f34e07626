"""Where MLXR keeps what it can make again: compiled artifacts, and the libraries of hosts."""

import os
from pathlib import Path

from mlxr.compiler.errors import MlxrError
from mlxr.runtime.hosts.registry import hosts


def caches() -> dict[str, str]:
    """What is cached: the name of each folder, and what is in it."""
    kept = {host.name: host.cached for host in hosts().values() if host.cached}
    return {"artifacts": "what specs and model files compile to"} | dict(sorted(kept.items()))


def cache_root() -> Path:
    """The folder of all that is cached, absolute, not yet made.

    It is `$MLXR_CACHE_DIR`, else `$XDG_CACHE_HOME/mlxr`, else `~/.cache/mlxr`. Relative ones count from the current
    folder; compilers run in another.

    Raises:
        MlxrError: neither variable is set and there is no home folder, or the current folder is gone.
    """
    try:
        if own := os.environ.get("MLXR_CACHE_DIR"):
            root = Path(own)
        elif base := os.environ.get("XDG_CACHE_HOME"):
            root = Path(base) / "mlxr"
        else:
            root = Path.home() / ".cache" / "mlxr"
        return root.absolute()
    except (RuntimeError, OSError) as error:
        raise MlxrError(f"there is no place for the cache: {error}; set MLXR_CACHE_DIR to a folder") from error


def cache_folder(name: str) -> Path:
    """The folder for one kind of cached files, in `cache_root()`, not yet made.

    Args:
        name: what is cached; see `caches`.

    Raises:
        MlxrError: there is no place for it.
    """
    return cache_root() / name

"""Where MLXR caches what it can make again: artifacts, libraries of hosts, blocks of KV caches, packed weights."""

import os
from pathlib import Path

from mlxr.compiler.errors import MlxrError

KV_FOLDER = "kv"
"""The folder of the blocks of KV caches."""
PACKED_FOLDER = "packed"
"""The folder of packed weights, and of what is known of the disk that they are on."""


def cache_root() -> Path:
    """The folder of the whole cache, as an absolute path. It may not exist yet.

    It is `$MLXR_CACHE_DIR`, else `$XDG_CACHE_HOME/mlxr`, else `~/.cache/mlxr`. A relative path is made absolute from
    the current folder, because compilers run in another one.

    Raises:
        MlxrError: neither variable is set and there is no home folder, or the current folder does not exist any more.
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
    """The folder for one kind of cached files, in `cache_root()`. It may not exist yet.

    Args:
        name: the name of the folder; `artifacts`, or of a host that caches what it compiles.

    Raises:
        MlxrError: there is no place for it.
    """
    return cache_root() / name

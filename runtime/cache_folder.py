"""Where MLXR keeps what it can make again: compiled kernels of the sim host, artifacts of the command line."""

import os
from pathlib import Path

from mlxr.compiler.errors import MlxrError


def cache_folder(name: str) -> Path:
    """The folder for one kind of cached files, absolute, not yet made.

    It is `$MLXR_CACHE_DIR/name`, else `$XDG_CACHE_HOME/mlxr/name`, else `~/.cache/mlxr/name`. Relative ones count
    from the current folder; compilers run in another.

    Args:
        name: what is cached.

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
        return root.absolute() / name
    except (RuntimeError, OSError) as error:
        raise MlxrError(f"there is no place for the cache: {error}; set MLXR_CACHE_DIR to a folder") from error

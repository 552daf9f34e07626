"""Where MLXR keeps what it cannot make again: the registry."""

import os
import sys
from pathlib import Path

from mlxr.registry.errors import RegistryError


def data_folder() -> Path:
    """The folder, as an absolute path. It may not exist yet.

    It is `$MLXR_DATA_DIR`; else `~/Library/Application Support/mlxr` on macOS; else `$XDG_DATA_HOME/mlxr`, else
    `~/.local/share/mlxr`.

    Raises:
        RegistryError: no variable is set and there is no home folder, or the current folder does not exist any more.
    """
    try:
        if own := os.environ.get("MLXR_DATA_DIR"):
            folder = Path(own)
        elif sys.platform == "darwin":
            folder = Path.home() / "Library" / "Application Support" / "mlxr"
        elif base := os.environ.get("XDG_DATA_HOME"):
            folder = Path(base) / "mlxr"
        else:
            folder = Path.home() / ".local" / "share" / "mlxr"
        return folder.absolute()
    except (RuntimeError, OSError) as error:
        raise RegistryError(f"there is no place for the registry: {error}; set MLXR_DATA_DIR to a folder") from error

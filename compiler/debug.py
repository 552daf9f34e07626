"""MLXR_DEBUG, the one switch for the debug output of compiler and runtime."""

import os

from mlxr.compiler.errors import MlxrError


def debug_level() -> int:
    """MLXR_DEBUG: 0 nothing, 1 timings, 2 graphs, 3 sources, 4 launches."""
    text = os.environ.get("MLXR_DEBUG") or "0"
    if text not in {"0", "1", "2", "3", "4"}:
        raise MlxrError(f"MLXR_DEBUG is {text!r}; expected a level from 0 to 4")
    return int(text)

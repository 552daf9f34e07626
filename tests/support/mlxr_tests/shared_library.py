"""C and C++ that stand for what a card has, as a library of this process."""

import ctypes
import subprocess
from pathlib import Path

from mlxr.runtime.hosts.sim.toolchain import RUNTIME_FLAGS, find_toolchain

# Of sim's own libraries: for others zig first makes a runtime of its own, which takes it up to 18 s.
_FLAGS = (*(flag for flag in RUNTIME_FLAGS if not flag.startswith(("-std=", "-fvisibility="))), "-shared", "-s")


def shared_library(source: Path, target: Path, *flags: str) -> ctypes.CDLL:
    """Compiles a file of C, or of C++ by its suffix, which uses nothing of C++'s library, and loads the result."""
    plus = ("-std=c++17", "-fno-exceptions", "-nostdlib++") if source.suffix == ".cpp" else ()
    subprocess.run([*find_toolchain().cc, *_FLAGS, *plus, *flags, str(source), "-o", str(target), "-lm"], check=True)
    return ctypes.CDLL(str(target))

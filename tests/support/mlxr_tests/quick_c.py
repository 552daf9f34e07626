"""Flags for the C of short tests, most of which runs for less time than compilers take."""

import contextlib
import functools
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mlxr.runtime.cache_folder import cache_folder
from mlxr.runtime.hosts.cpu.processor import processor_identity
from mlxr.runtime.hosts.cpu.toolchain import Compiler, find_compilers
from mlxr.runtime.hosts.library_cache import digest

# A function is compiled once, not for each call. Programs of -Og run twice as fast as those of -O0, which take half as
# long to compile: tests of kernels run each of theirs for a moment only.
_LEVEL, _LEAST, _FLAGS = "-Og", "-O0", "-Dalways_inline="
# All texts include these, and reading them takes a third of the time. What they include must know the first line.
_HEADER = """#define _GNU_SOURCE
#ifdef __x86_64__
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif
"""


def use_quick_c() -> None:
    """Sets `MLXR_CPU_CFLAGS`, unless it is set."""
    if "MLXR_CPU_CFLAGS" not in os.environ:
        os.environ["MLXR_CPU_CFLAGS"] = _flags(_LEVEL)


@contextlib.contextmanager
def quickest_c() -> Iterator[None]:
    """Has `MLXR_CPU_CFLAGS`, where it is what `use_quick_c` makes it, ask for what compiles soonest."""
    kept = os.environ.get("MLXR_CPU_CFLAGS", "")
    if kept.startswith(f"{_LEVEL} {_FLAGS}"):
        os.environ["MLXR_CPU_CFLAGS"] = _flags(_LEAST)
    yield
    if kept:
        os.environ["MLXR_CPU_CFLAGS"] = kept


@functools.cache
def _flags(level: str) -> str:
    """Flags for the C of that level, and where the header for it is."""
    flags, kept = f"{level} {_FLAGS}", os.environ.get("MLXR_CPU_CFLAGS")
    os.environ["MLXR_CPU_CFLAGS"] = flags
    try:
        folder = _parsed_header()
    finally:
        del os.environ["MLXR_CPU_CFLAGS"]
        if kept is not None:
            os.environ["MLXR_CPU_CFLAGS"] = kept
    # Found by a search, which only GCC does for what is parsed: clang would warn that it cannot read it.
    return f"{flags} -I{folder} -include intrinsics.h" if folder else flags


def _parsed_header() -> Path | None:
    """The folder of intrinsics.h and of what GCC made of it, which it passes over where other flags are given."""
    compiler = next(iter(find_compilers()), None)
    if compiler is None or not is_gcc(compiler):
        return None
    command = compiler.object_command("intrinsics.h", "intrinsics.h.gch")
    folder = cache_folder("test-c") / digest(*command, compiler.identity, processor_identity(), _HEADER)
    if not folder.is_dir() and " " not in str(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as outer:
            work = Path(outer, "made")
            work.mkdir()
            (work / "intrinsics.h").write_text(_HEADER)
            if subprocess.run(command, cwd=work, capture_output=True, check=False).returncode == 0:
                with contextlib.suppress(OSError):  # another process was faster
                    work.rename(folder)
    return folder if folder.is_dir() else None


def is_gcc(compiler: Compiler) -> bool:
    """Whether a compiler is GCC, by what it says of itself."""
    told = subprocess.run([*compiler.command, "--version"], capture_output=True, text=True, check=False).stdout
    return "Free Software Foundation" in told

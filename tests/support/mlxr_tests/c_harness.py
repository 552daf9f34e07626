"""C snippets with the headers of templates/cpu, compiled and loaded with ctypes.

    library = c_library(["common.h", "simd.h"], "void f(float *x) { ... }", march="x86-64-v3")
    library.f(address(x))

A snippet exports its non-static functions; they return int unless `restype` says otherwise. Libraries are cached like
those of the cpu host: by text, flags, compiler and CPU. MLXR_CPU_CFLAGS adds flags, and then only the first
compiler is used: -fsanitize=undefined needs nothing else, -fsanitize=address needs LD_PRELOAD=libasan.so and
ASAN_OPTIONS=detect_leaks=0.
"""

import ctypes
import fcntl
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from mlxr.runtime.hosts.cpu.instruction_sets import instruction_sets, machine_flags
from mlxr.runtime.hosts.cpu.processor import processor_identity
from mlxr.runtime.hosts.library_cache import LibraryCache, digest
from mlxr.runtime.hosts.run_compiler import zig_executable

# The flags of the cpu host (runtime/hosts/cpu/toolchain.py), and warnings.
FLAGS = (
    *("-std=gnu11", "-O2", "-fno-gcse", "-fno-unswitch-loops", "-g0", "-Wall", "-Werror"),
    *("-Wno-psabi", "-Wno-unused-function", "-Wno-ignored-optimization-argument"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-pthread"),
)

SHORT_MARCHES = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "neon", "native")
"""Those that short tests of single functions try; the others add little that these do not have."""

CC: tuple[str, ...] = ("cc",)
ZIG: tuple[str, ...] = (sys.executable, "-m", "ziglang", "cc")
_cache = LibraryCache("test-c")


def compilers() -> list[tuple[str, ...]]:
    """The commands of the compilers on this machine."""
    commands = [CC] if shutil.which("cc") else []
    commands += [ZIG] if importlib.util.find_spec("ziglang") else []
    return commands[:1] if _added_flags() else commands


def _added_flags() -> list[str]:
    return os.environ.get("MLXR_CPU_CFLAGS", "").split()


def marches() -> list[str]:
    """The instruction sets that this machine can run, smallest first, then `native`: this CPU, or --isa's set."""
    return [*(found.name for found in instruction_sets() if not found.missing), "native"]


def march_flags(march: str, compiler: tuple[str, ...]) -> tuple[str, ...]:
    """The flags of one of `marches()` for a compiler of `compilers()`."""
    if march == "native":
        return machine_flags(is_zig=compiler == ZIG)
    return next(found for found in instruction_sets() if found.name == march).flags(is_zig=compiler == ZIG)


def text_of(headers: Sequence[str], code: str) -> str:
    """The headers of templates/cpu, verbatim and in order, then the code."""
    root = files("mlxr.templates") / "cpu"
    parts = [f'#line 1 "{name}"\n' + (root / name).read_text(encoding="ascii") for name in headers]
    return "\n".join([*parts, '#line 1 "snippet"', code]) + "\n"


def compile_text(text: str, output: str, command: Sequence[str], *flags: str) -> Path:
    """Compiles C text to a file in the cache, unless it is there. Concurrent processes compile a file only once.

    Raises:
        AssertionError: the compiler failed or warned; the error has its message.
    """
    options = [*FLAGS, *flags, *_added_flags()]
    key = digest(text, *command, *options, _compiler_identity(command[0]), processor_identity())
    target = _cache.folder() / f"{key}-{output}"
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _cache.read(target) is None:
            with _cache.workspace() as work:
                (work / "snippet.c").write_text(text, encoding="ascii")
                arguments = [*command, *options, "-o", output, "snippet.c", "-lm"]
                done = subprocess.run(arguments, cwd=work, capture_output=True, text=True, check=False)
                assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stderr[:8000]}"
                _cache.publish(work / output, target)
    return target


@functools.cache
def _compiler_identity(program: str) -> str:
    """The identity of `cc` or of the ziglang wheel: its file, with links resolved."""
    path = shutil.which(program) if program == CC[0] else zig_executable()
    assert path is not None, f"no {program}"
    status = Path(path).resolve().stat()
    return f"{Path(path).resolve()} {status.st_size} {status.st_mtime_ns}"


def c_library(
    headers: Sequence[str],
    code: str,
    march: str = "native",
    compiler: tuple[str, ...] | None = None,
    flags: tuple[str, ...] = (),
) -> ctypes.CDLL:
    """A snippet's library. `compiler` is one of `compilers()`; None means the first."""
    command = compiler or compilers()[0]
    machine = march_flags(march, command)
    path = compile_text(text_of(headers, code), "library.so", command, *machine, "-shared", *flags)
    return ctypes.CDLL(str(path))


def check_cross_compiles(headers: Sequence[str], code: str, target: str, cpu: str) -> None:
    """Compiles a snippet for another machine with ziglang; skips the test if ziglang is not installed."""
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed")
    compile_text(text_of(headers, code), "object.o", ZIG, "-target", target, f"-mcpu={cpu}", "-c")


def address(array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> ctypes.c_void_p:
    """The address of a C-contiguous array's first byte, as an argument of a function; it keeps the array alive."""
    assert array.flags.c_contiguous, "the array is not contiguous"
    return array.ctypes.data_as(ctypes.c_void_p)


def aligned(
    shape: Sequence[int] | int, dtype: npt.DTypeLike, byte: int = 64
) -> "np.ndarray[tuple[int, ...], np.dtype[np.generic]]":
    """A zeroed array whose first byte lies at a multiple of `byte`."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + byte, np.uint8)
    start = -raw.ctypes.data % byte
    return raw[start : start + size].view(dtype).reshape(shape)

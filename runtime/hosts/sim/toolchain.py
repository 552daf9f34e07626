"""Finds clang for the sim host and says how to compile and link with it.

Two compilers will do: a system clang (LLVM 17 or newer) or the one inside the `ziglang` wheel, which pip installs on
any platform. Kernels are compiled as C++ for OpenCL; the C runtime as C11.
"""

import functools
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.run_compiler import zig_executable

_OLDEST = 17
_OLDEST_APPLE = 16  # Apple numbers its clang apart; 16 is made from LLVM 17

_COMMON = (
    "-O2",
    "-fPIC",
    # Accesses wider than 16 bytes are not checked; only the vectorizers make them.
    "-fno-vectorize",
    "-fno-slp-vectorize",
    # The limit of one function; build.py limits their sum, which must fit a fiber's stack.
    "-Wframe-larger-than=16384",
    "-Werror=frame-larger-than",
)
KERNEL_FLAGS = (
    "-x",
    "clcpp",
    "-cl-std=clc++2021",
    "-cl-no-stdinc",
    "-cl-single-precision-constant",
    # No double, and program-scope variables only in constant. Generic pointers are allowed, since `this` is one.
    "-Xclang",
    "-cl-ext=-all,+__opencl_c_generic_address_space",
    # The checks: see sim_checks.c.
    "-fsanitize=thread,array-bounds,integer-divide-by-zero",
    "-fno-sanitize-recover=all",
    "-mllvm",
    "-tsan-instrument-func-entry-exit=0",
    "-mllvm",
    "-tsan-instrument-read-before-write=1",
    # MLX aligns arrays to 8 bytes on a CPU, so 16-byte loads must not assume more. sim_checks.c still checks for 16.
    "-fmax-type-align=8",
    "-fvisibility=hidden",
    # Line numbers, for the messages of faults.
    "-gline-tables-only",
    # An access through a null pointer must be checked, not optimised away.
    "-fno-delete-null-pointer-checks",
    "-Wno-unknown-attributes",
    "-Wno-unused-value",
    *_COMMON,
)
# From instrumented LLVM IR to an object.
OBJECT_FLAGS = (*_COMMON, "-fstack-usage", "-x", "ir")


def object_flags() -> tuple[str, ...]:
    """The flags that make an object of IR: ours and those of `$MLXR_SIM_CFLAGS`. `-O0` compiles quickly, runs slowly.

    Raises:
        HostError: the quotes of `$MLXR_SIM_CFLAGS` are unbalanced.
    """
    more = os.environ.get("MLXR_SIM_CFLAGS", "")
    try:
        return (*OBJECT_FLAGS, *shlex.split(more))
    except ValueError as error:
        raise HostError(f"MLXR_SIM_CFLAGS={more!r} is not a command line ({error}); correct or unset it") from error


NO_PASSES = ("-Xclang", "-disable-llvm-passes")
"""The flags that compile IR without optimising it."""
# Accesses through pointers to private arrays, where the compiler knows the array; see instrument.py.
_PRIVATE_CHECKS = ("-fsanitize=local-bounds", "-fsanitize-trap=local-bounds")
RUNTIME_FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-fvisibility=hidden", "-fomit-frame-pointer", "-fno-sanitize=all")
INSTALL = "pip install ziglang"


@dataclass(frozen=True)
class Toolchain:
    """How to run clang and a linker here.

    Attributes:
        clang: the command that compiles C++ for OpenCL and assembly.
        cc: the command that compiles C with the system's headers and links shared libraries.
        linker: the command that links a kernel's objects; takes `-o`.
        version: the first line of `clang --version`.
        machine: flags that name the target.
    """

    clang: tuple[str, ...]
    cc: tuple[str, ...]
    linker: tuple[str, ...]
    version: str
    machine: tuple[str, ...]

    @property
    def identity(self) -> str:
        """Everything that decides what this toolchain makes of a text."""
        return "\n".join((self.version, sys.platform, platform.machine(), *self.machine, *self.linker[1:]))


def find_toolchain() -> Toolchain:
    """The compiler to use: `$MLXR_CLANG`, else clang on the PATH if new enough, else the `ziglang` wheel's.

    Raises:
        HostError: there is none, or `$MLXR_CLANG` is not a clang that is new enough.
    """
    return _find(os.environ.get("MLXR_CLANG"), os.environ.get("PATH"))


@functools.lru_cache(maxsize=8)
def private_checks(clang: tuple[str, ...]) -> tuple[str, ...]:
    """The flags that check private arrays, or none if this clang does not know them.

    Args:
        clang: the command. The answer depends on its version, which is part of `Toolchain.identity`.
    """
    command = [*clang, *_PRIVATE_CHECKS, "-x", "c", "-fsyntax-only", os.devnull]
    result = subprocess.run(command, capture_output=True, check=False)
    return _PRIVATE_CHECKS if result.returncode == 0 else ()


@functools.lru_cache(maxsize=8)
def _find(override: str | None, path: str | None) -> Toolchain:
    if override:
        command = shutil.which(override, path=path)
        version = _clang_version((command,)) if command else None
        if command is None or version is None:
            raise HostError(
                f"MLXR_CLANG={override!r} is not a clang of version {_OLDEST} or newer; unset it or {INSTALL}"
            )
        return _system(command, version)
    for name in ("clang", *(f"clang-{number}" for number in range(26, _OLDEST - 1, -1))):
        command = shutil.which(name, path=path)
        if command and (version := _clang_version((command,))):
            return _system(command, version)
    zig = zig_executable()
    version = _clang_version((zig, "clang")) if zig else None
    if zig is None or version is None:
        raise HostError(f"sim needs clang {_OLDEST} or newer and found none; this installs one: {INSTALL}")
    if sys.platform == "darwin":
        linker: tuple[str, ...] = (zig, "cc", "-dynamiclib", "-undefined", "dynamic_lookup")
    else:
        linker = (zig, "ld.lld", "-shared", "--strip-all", "-z", "noexecstack", "--hash-style=gnu")
    return Toolchain((zig, "clang"), (zig, "cc", "-mcpu=baseline"), linker, version, _machine())


def _system(command: str, version: str) -> Toolchain:
    if sys.platform == "darwin":
        linker: tuple[str, ...] = (command, "-dynamiclib", "-undefined", "dynamic_lookup")
    else:
        linker = (command, "-shared", "-nostdlib", "-Wl,--strip-all", "-Wl,-z,noexecstack")
    return Toolchain((command,), (command,), linker, version, _machine())


def _clang_version(command: Sequence[str]) -> str | None:
    """The first line of `--version`; None if the program is not a clang or too old."""
    try:
        result = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    line = result.stdout.partition("\n")[0]
    match = re.search(r"(Apple )?clang version (\d+)", line)
    if result.returncode != 0 or match is None:
        return None
    return line if int(match.group(2)) >= (_OLDEST_APPLE if match.group(1) else _OLDEST) else None


@functools.cache
def _machine() -> tuple[str, ...]:
    """Flags for the processor: a level and not `native`, so that all machines of a level give the same results."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return ()
    if sys.platform == "linux":
        try:
            match = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        except OSError:
            return ()
        flags = match.group(1).split() if match else []
        if {"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm"} <= set(flags):
            return ("-march=x86-64-v3",)
    return ()

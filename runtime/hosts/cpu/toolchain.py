"""Which C compilers there are, and how to call them.

They are tried in this order: `$CC`, cc, clang, and the one inside the `ziglang` wheel. Invariant: nothing here runs a
compiler, so that a start with a cached library runs none. Whether a compiler works shows when it builds a text.
"""

import logging
import os
import platform
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cpu.instruction_sets import machine_flags
from mlxr.runtime.hosts.run_compiler import zig_executable

_LOG = logging.getLogger(__name__)

INSTALL = "pip install 'mlxr[cpu]'"
_FLAGS = (
    "-std=gnu11",
    # With -O3, -fgcse and -funswitch-loops GCC takes three times as long, and nothing is measurably faster: the text
    # uses vectors explicitly, and loops branch on literals.
    "-O2",
    "-fno-gcse",
    "-fno-unswitch-loops",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-fPIC",
    "-pthread",
    # No notes that older versions of GCC pass vectors differently that are wider than the CPU's registers.
    "-Wno-psabi",
)
# Zig would first make the C library and a runtime of its own, which takes it 5 s. A process that loads the library has
# both: what the program calls is found there. On other systems the library must be named.
_ZIG_LINKS = ("-nostdlib",) if sys.platform == "linux" and platform.machine() == "x86_64" else ("-lm",)


@dataclass(frozen=True)
class Compiler:
    """A C compiler.

    Attributes:
        name: its name in messages.
        command: the program and its first arguments.
        identity: the program's file, size and modification time, which differ between versions.
        is_chosen: whether the user named it.
        extra: flags that only this compiler needs.
        linking: flags that it needs to link, too.
    """

    name: str
    command: tuple[str, ...]
    identity: str
    is_chosen: bool = False
    extra: tuple[str, ...] = ()
    linking: tuple[str, ...] = ("-lm",)

    def object_command(self, source: str, output: str) -> list[str]:
        """The command that compiles one C file to an object."""
        return [*self._command, "-c", source, "-o", output]

    @property
    def is_linked_apart(self) -> bool:
        """Whether it must make objects first: where it links without the C library, zig finds none of its headers."""
        return "-nostdlib" in self.linking

    def build_command(self, *inputs: str, output: str) -> list[str]:
        """The command that makes a shared library of C files or objects."""
        return [*self._command, "-shared", *inputs, "-o", output, *self.linking]

    @property
    def _command(self) -> list[str]:
        machine = machine_flags(is_zig="zig" in " ".join(self.command))
        return [*self.command, *_FLAGS, *machine, *self.extra, *user_flags()]


def find_compilers() -> list[Compiler]:
    """The compilers of this machine, the preferred one first; each program once.

    Raises:
        HostError: `$CC` is not a command line.
    """
    compilers = [_chosen(os.environ["CC"])] if os.environ.get("CC", "").strip() else []
    compilers += [_program(name) for name in ("cc", "clang")]
    if zig := zig_executable():
        # Without these, zig's cc traps on undefined behaviour and adds a stack protector.
        quiet = ("-fno-sanitize=undefined", "-fno-stack-protector")
        compilers.append(Compiler("python -m ziglang cc", (zig, "cc"), _identity(zig), extra=quiet, linking=_ZIG_LINKS))
    unique: dict[str, Compiler] = {}
    for compiler in compilers:
        if compiler is not None:
            unique.setdefault(compiler.identity, compiler)
    return list(unique.values())


def user_flags() -> tuple[str, ...]:
    """The user's own flags, from `$MLXR_CPU_CFLAGS`.

    Raises:
        HostError: its quotes are unbalanced.
    """
    return tuple(_words("MLXR_CPU_CFLAGS", os.environ.get("MLXR_CPU_CFLAGS", "")))


def no_compiler() -> HostError:
    """The error to raise if there is no compiler."""
    return HostError(f"host cpu needs a C compiler and found none ($CC, cc, clang); this installs one: {INSTALL}")


def _chosen(value: str) -> Compiler | None:
    words = _words("CC", value)
    program = shutil.which(words[0])
    if program is None:
        _LOG.warning("note: CC=%r does not name a program; using another compiler", value)
        return None
    # The command may start another program (`ccache gcc`, `python -m ziglang cc`), which is part of the identity too.
    others = [zig_executable() if word == "ziglang" else shutil.which(word) for word in words[1:]]
    identity = " ".join([*map(_identity, [program, *filter(None, others)]), *words[1:]])
    return Compiler(f"$CC ({value})", (program, *words[1:]), identity, is_chosen=True)


def _program(name: str) -> Compiler | None:
    program = shutil.which(name)
    return Compiler(name, (program,), _identity(program)) if program else None


def _words(variable: str, value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError as error:
        raise HostError(f"{variable}={value!r} is not a command line ({error}); correct or unset it") from error


def _identity(program: str) -> str:
    """Identifies a program by its file, with links resolved: `cc` and `gcc` are often the same."""
    real = Path(program).resolve()
    try:
        status = real.stat()
    except OSError as error:
        raise HostError(f"the compiler {program} cannot be read: {error.strerror or error}") from error
    return f"{real} {status.st_size} {status.st_mtime_ns}"

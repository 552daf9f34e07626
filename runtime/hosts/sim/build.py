"""Compiles a kernel's text to a shared library, cached by content.

    prelude + text + entry -> clang -> LLVM IR -> instrument -> clang -> object -+-> library
                                                           checks, conversions -+

The name of a cache entry hashes everything that decides its content, including the sources of this package; comments do
not. Entries that are damaged on disk are built again, once.
"""

import functools
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.library_cache import LibraryCache, digest
from mlxr.runtime.hosts.run_compiler import run_compiler
from mlxr.runtime.hosts.sim.instrument import instrument
from mlxr.runtime.hosts.sim.signature import Signature, require_address_spaces, without_comments
from mlxr.runtime.hosts.sim.toolchain import (
    KERNEL_FLAGS,
    NO_PASSES,
    RUNTIME_FLAGS,
    find_toolchain,
    object_flags,
    private_checks,
)

L = TypeVar("L")

ENTRY = "mlxr_sim_entry"
_PRELUDE = ("sim_layout.h", "metal_on_cpu.h", "metal_on_cpu_math.h", "metal_on_cpu_simd.h")
# The files of this package that decide, together with flags and templates, how a text becomes a library.
_SOURCES = ("build.py", "instrument.py", "signature.py")


@dataclass(frozen=True, slots=True)
class _Part:
    """A file that is compiled from our own C files: their names, its name, and the flags."""

    sources: tuple[str, ...]
    output: str
    flags: tuple[str, ...]


_RUNTIME = _Part(
    ("sim_layout.h", "sim_runtime.h", "sim_runtime.c", "sim_workers.c", "sim_pages.c"),
    "runtime.so",
    ("-shared", "-pthread", "-s"),
)
_CHECKS = _Part(("sim_layout.h", "sim_runtime.h", "sim_checks.c"), "checks.o", ("-c", "-mgeneral-regs-only"))
_CONVERSIONS = _Part(("sim_conversions.c",), "conversions.o", ("-c",))

# A fiber's stack is 128 KiB (sim_layout.h); the guard page takes up to 16 KiB and the stagger 12. A kernel may use this
# much of the rest; the remainder is for the runtime, the C library and signal handlers.
_STACK_LIMIT = 65536

# IR of more characters is not optimised again after instrumentation: that would take longer than it saves.
_LARGE_IR = 100_000

_cache = LibraryCache("sim")
_repair = threading.RLock()  # one thread at a time removes and rebuilds damaged entries

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<(?:metal_\w+|simd/simd\.h)>[^\n]*$", re.MULTILINE)


@functools.cache
def template(name: str) -> str:
    """The text of a file of templates/hosts."""
    return files("mlxr.templates").joinpath("hosts", name).read_text("utf-8")


@functools.cache
def own_source(name: str) -> str:
    """The text of a file of this package."""
    return files("mlxr.runtime.hosts.sim").joinpath(name).read_text("utf-8")


def library_folder() -> Path:
    """The folder of libraries; made if it does not exist.

    Raises:
        HostError: the folder cannot be made.
    """
    return _cache.folder()


def load_runtime(load: Callable[[Path], L]) -> L:
    """Loads the C runtime's library, compiled on first use; `load` raises OSError if it is damaged.

    Raises:
        HostError: there is no compiler, or a newly built library cannot be loaded either.
    """
    return _load_sound("its own runtime", build_runtime, lambda: [_part_path(_RUNTIME)], load)


def load_kernel(text: str, signature: Signature, load: Callable[[Path], L]) -> L:
    """Loads one kernel's library, as `load_runtime` and `build_kernel` do."""
    what = f"kernel {signature.name!r}"
    parts = (_CHECKS, _CONVERSIONS)

    def entries() -> list[Path]:
        return [_kernel_path(text, signature), *(_part_path(part) for part in parts)]

    return _load_sound(what, lambda: build_kernel(text, signature), entries, load)


def _load_sound(
    what: str, build: Callable[[], Path], entries: Callable[[], list[Path]], load: Callable[[Path], L]
) -> L:
    """Builds and loads; if that fails because of damage on disk, removes these entries and tries once more."""
    try:
        return load(build())
    except OSError:
        pass
    with _repair:
        try:
            return load(build())  # another thread may have been here
        except OSError:
            _cache.remove(entries())
        try:
            return load(build())
        except OSError as error:
            raise HostError(
                f"sim: cannot load {what}, which was just built: {error}; see that {library_folder()} allows "
                "programs to run, or set MLXR_CACHE_DIR to a folder that does"
            ) from error


def build_runtime() -> Path:
    """The C runtime as a shared library, compiled on first use."""
    return _build_part(_RUNTIME)


def build_kernel(text: str, signature: Signature) -> Path:
    """The library of one kernel, compiled if the cache does not have it.

    Args:
        text: the standalone Metal text.
        signature: its kernel.

    Raises:
        HostError: there is no compiler, or the text does not compile. The message contains the compiler's, with line
            numbers of the text.
    """
    target = _kernel_path(text, signature)
    if _cache.read(target) is not None:
        return target
    require_address_spaces(without_comments(text), signature.name)
    toolchain = find_toolchain()
    with _cache.workspace() as work:
        what = f"kernel {signature.name!r}"
        source = f"{signature.name}.metal"
        (work / "kernel.clcpp").write_text(_own_text(text, signature, source), "utf-8")
        parsed = ("-include-pch", str(_parsed_prelude()))
        _run([*_kernel_command(), *parsed, "-S", "-emit-llvm", "kernel.clcpp", "-o", "kernel.ll"], work, what)
        ir = instrument((work / "kernel.ll").read_text("utf-8"), source)
        (work / "checked.ll").write_text(ir, "utf-8")
        passes = NO_PASSES if len(ir) > _LARGE_IR else ()
        command = [*toolchain.clang, *object_flags(), *passes, *toolchain.machine, "-c"]
        _run([*command, "checked.ll", "-o", "kernel.o"], work, what)
        _require_stack(work / "kernel.su", what)
        _link(work, what)
        _cache.publish(work / "kernel.so", target)
    return target


def _kernel_command() -> list[str]:
    toolchain = find_toolchain()
    return [*toolchain.clang, *KERNEL_FLAGS, *private_checks(toolchain.clang), *toolchain.machine]


def _prelude() -> str:
    """What comes before every kernel, each file under its own name."""
    return "\n".join(f'#line 1 "{name}"\n{template(name)}' for name in _PRELUDE)


def _parsed_prelude() -> Path:
    """The prelude as clang has read it, made on first use: reading it takes as long as reading most kernels.

    Clang refuses it where its source has gone, so that this lies beside it; and it knows the source by its place.
    """
    command, text = _kernel_command(), _prelude()
    key = digest(find_toolchain().identity, *command, text, str(library_folder()))
    source, target = (library_folder() / f"prelude-{key}.{suffix}" for suffix in ("clcpp", "pch"))
    if _cache.read(source) is None or _cache.read(target) is None:
        with _cache.workspace() as work:
            (work / source.name).write_text(text, "utf-8")
            _cache.publish(work / source.name, source)
            options = ("-c", "-Xclang", "-emit-pch", "-Xclang", "-fno-pch-timestamp")
            _run([*command, *options, str(source), "-o", target.name], work, "its own prelude")
            _cache.publish(work / target.name, target)
    return target


def _link(work: Path, what: str) -> None:
    """Links kernel.o with our own objects. If that fails, one of them may be damaged: both are built again."""

    def link() -> None:
        objects = [str(_build_part(part)) for part in (_CHECKS, _CONVERSIONS)]
        _run([*find_toolchain().linker, "kernel.o", *objects, "-o", "kernel.so"], work, what)

    try:
        link()
    except HostError:
        with _repair:
            _cache.remove([_part_path(part) for part in (_CHECKS, _CONVERSIONS)])
            link()


def _require_stack(usage: Path, what: str) -> None:
    """Refuses a kernel whose functions together need more stack than a fiber has.

    There is no recursion, so no chain of calls needs more than their sum. A compiler that does not report stack usage
    (no file `usage`) has itself refused large frames.
    """
    if not usage.exists():
        return
    total = sum(int(line.rsplit("\t", 2)[1]) for line in usage.read_text("utf-8").splitlines())
    if total > _STACK_LIMIT:
        raise HostError(
            f"sim: {what} needs {total} bytes of private memory in all of its functions; sim allows {_STACK_LIMIT}: "
            "make its private arrays smaller"
        )


def _kernel_path(text: str, signature: Signature) -> Path:
    toolchain = find_toolchain()
    parts = (_CHECKS, _CONVERSIONS, _RUNTIME)
    said = _said(text)
    key = digest(
        toolchain.identity,
        *toolchain.cc,
        *KERNEL_FLAGS,
        *object_flags(),
        *NO_PASSES,
        *RUNTIME_FLAGS,
        *(own_source(name) for name in _SOURCES),
        *(word for part in parts for word in (*part.flags, *(template(name) for name in part.sources))),
        _translation_unit(said, signature, f"{signature.name}.metal"),
        repr(signature),
        said,
    )
    return library_folder() / f"{signature.name[:80]}-{key}.so"


def _said(text: str) -> str:
    """A text without its comments, which tell sizes that the code does not depend on. Lines keep their numbers."""
    return "\n".join(line.rstrip() for line in without_comments(text).split("\n"))


def _part_path(part: _Part) -> Path:
    toolchain = find_toolchain()
    texts = (template(name) for name in part.sources)
    key = digest(toolchain.identity, *toolchain.cc, *RUNTIME_FLAGS, *part.flags, *texts)
    stem, _, suffix = part.output.partition(".")
    return library_folder() / f"{stem}-{key}.{suffix}"


def _build_part(part: _Part) -> Path:
    """Compiles one of our own parts on first use."""
    target = _part_path(part)
    if _cache.read(target) is None:
        with _cache.workspace() as work:
            for name in part.sources:
                (work / name).write_text(template(name), "utf-8")
            names = [name for name in part.sources if name.endswith(".c")]
            command = [*find_toolchain().cc, *RUNTIME_FLAGS, *part.flags, *names, "-o", part.output]
            _run(command, work, f"its own {part.output}")
            _cache.publish(work / part.output, target)
    return target


def _translation_unit(text: str, signature: Signature, source: str) -> str:
    """Prelude, kernel text and the entry function, each under its own file name."""
    return f"{_prelude()}\n{_own_text(text, signature, source)}"


def _own_text(text: str, signature: Signature, source: str) -> str:
    """Kernel text and the entry function."""
    entry = (
        f"MLXR_ENTRY {ENTRY}(const thread ulong* b, const thread MlxrSimGroup* g, uint i) {{\n"
        "    (void)b, (void)g, (void)i;\n"
        f"    {signature.name}({', '.join(signature.arguments)});\n"
        "}\n"
    )
    return f'#line 1 "{source}"\n{_INCLUDE.sub("", text)}\n#line 1 "entry"\n{entry}'


def _run(command: Sequence[str], folder: Path, what: str) -> None:
    failure = run_compiler(command, folder)
    if failure is not None:
        hint = ""
        if "local address space" in failure:
            hint = "\nsim: declare threadgroup arrays with MLXR_THREADGROUP(type, name, count)"
        raise HostError(f"sim: cannot compile {what}:\n{failure}{hint}\ncommand: {' '.join(command)}")

"""Compiles the C text of an artifact to a shared library and loads it; libraries are cached by content.

The file name of a library has a hash of the text (all but the model's name), the compiler, its flags and the CPU. The
library itself contains the same hash, so that one built for another CPU is never loaded, whatever its file is called.
If a compiler cannot build the text, the next one is tried. If the cache cannot be used, a note says so, and the library
is built in a temporary folder.
"""

import contextlib
import ctypes
import logging
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cpu.compile_units import OUTPUT, BuildError, Tick, UnitCompiler
from mlxr.runtime.hosts.cpu.instruction_sets import check_features, marker
from mlxr.runtime.hosts.cpu.processor import processor_identity
from mlxr.runtime.hosts.cpu.toolchain import INSTALL, Compiler, find_compilers, no_compiler
from mlxr.runtime.hosts.cpu.units import said
from mlxr.runtime.hosts.library_cache import LibraryCache, digest

_LOG = logging.getLogger(__name__)

_cache = LibraryCache("cpu")


def load_library(text: str, name: str, tick: Tick | None = None, flags: Sequence[str] = ()) -> ctypes.CDLL:
    """The library of a C text, from the cache or compiled now.

    Args:
        text: one translation unit.
        name: the model's name, for file names and messages.
        tick: called while a compiler runs.
        flags: more flags for the compiler.

    Raises:
        HostError: there is no compiler, none can build the text, the result cannot be loaded, or the user had
            it compiled for a CPU that has more than this one.
    """
    library = _load(text, name, tick, flags)
    check_features(library)
    return library


def _load(text: str, name: str, tick: Tick | None, flags: Sequence[str]) -> ctypes.CDLL:
    compilers = [replace(compiler, extra=(*compiler.extra, *flags)) for compiler in find_compilers()]
    if not compilers:
        raise no_compiler()
    folder = _folder()
    _lend_math()
    failures: list[tuple[Compiler, str]] = []
    chosen = [compiler for compiler in compilers if compiler.is_chosen]
    # Compilers that the user did not choose are equally good, so a cached library of any saves running one.
    for group in (chosen, [compiler for compiler in compilers if not compiler.is_chosen]):
        for compiler in group:
            key = _key(compiler, text)
            for entry in sorted(folder.glob(f"*-{key}.so")) if folder else ():  # of a model of any name
                if cached := _load_cached(entry, key):
                    _note_failures(name, failures, compiler)
                    return cached
        for compiler in group:
            try:
                library = _build(compiler, text, name, folder, tick)
            except BuildError as error:
                failures.append((compiler, str(error)))
                continue
            _note_failures(name, failures, compiler)
            return library
    raise _cannot_build(name, failures)


def _key(compiler: Compiler, text: str) -> str:
    """A hash of everything that the library depends on."""
    command = compiler.build_command("model.c", output=OUTPUT)
    return digest(said(text), *command, compiler.identity, processor_identity())


def _entry(folder: Path, key: str, name: str) -> Path:
    return folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)[:80]}-{key}.so"


def _lend_math() -> None:
    """Lets libraries find the C library's functions of mathematics, which the one that a compiler made may not name."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # where there is no such file, they are in the C library itself
            ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)


def _folder() -> Path | None:
    try:
        return _cache.folder()
    except HostError as error:
        _note(f"not cached: {error}")
        return None


def _load_cached(path: Path, key: str) -> ctypes.CDLL | None:
    """The cached library, if it is undamaged, contains this key and can be loaded; else None."""
    content = _cache.read(path)
    if content is None or key.encode() not in content:
        return None
    try:
        return ctypes.CDLL(str(path), use_errno=True)
    except OSError as error:
        _note(f"{path} cannot be loaded: {error}; set MLXR_CACHE_DIR to a folder that allows programs to run")
        return None


def _build(compiler: Compiler, text: str, name: str, folder: Path | None, tick: Tick | None) -> ctypes.CDLL:
    """Compiles in a folder of its own, moves the result into the cache, and loads it.

    Raises:
        BuildError: the compiler failed.
        HostError: no temporary folder can be made, or the library cannot be loaded.
    """
    key = _key(compiler, text)
    marked = f'{text}\n__attribute__((used, visibility("default"))) const char mlxr_key[] = "{key}";\n{marker()}'
    try:
        with tempfile.TemporaryDirectory(prefix="mlxr-cpu-") as outer:
            work = Path(outer) / "build"  # zig keeps files beside this folder: they are removed with `outer`
            work.mkdir()
            built = UnitCompiler(compiler, work, _cache, folder, tick).build(marked)
            published = folder and _publish(built, _entry(folder, key, name))
            return (published and _load_cached(published, key)) or _load_new(built, name)
    except OSError as error:
        raise HostError(
            f"cpu: cannot compile in the temporary folder {tempfile.gettempdir()}: {error}; set TMPDIR to a folder "
            "that can be written"
        ) from error


def _publish(built: Path, target: Path) -> Path | None:
    try:
        _cache.publish(built, target)
    except OSError as error:
        _note(f"not cached: {_cache.unwritable(target.parent, error)}")
        return None
    return target


def _load_new(path: Path, name: str) -> ctypes.CDLL:
    """Loads a library that is not in the cache. It stays loaded after its file is removed."""
    try:
        return ctypes.CDLL(str(path), use_errno=True)
    except OSError as error:
        raise HostError(
            f"cpu: cannot load the library of {name}, which was just built: {error}; set MLXR_CACHE_DIR or TMPDIR to a "
            "folder that allows programs to run"
        ) from error


def _note_failures(name: str, failures: Sequence[tuple[Compiler, str]], used: Compiler) -> None:
    for compiler, message in failures:
        reason = next((line for line in message.splitlines()[1:] if "error" in line), message.splitlines()[1])
        _note(f"{compiler.name} cannot build {name} ({reason.strip()[:200]}); using {used.name}")


def _cannot_build(name: str, failures: Sequence[tuple[Compiler, str]]) -> HostError:
    tried = "\n".join(f"{compiler.name}: {message}" for compiler, message in failures)
    has_zig = any("zig" in " ".join(compiler.command) for compiler, _ in failures)
    hint = "" if has_zig else f"\nthis installs another compiler: {INSTALL}"
    return HostError(f"cpu: no C compiler here can build {name}\n{tried}{hint}")


def _note(text: str) -> None:
    _LOG.warning("note: %s", text)

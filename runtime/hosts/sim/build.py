"""Kernel text to a shared library, cached by content.

    prelude + text + entry -> clang -> LLVM IR -> instrument -> clang -> object -+-> library
                                                           checks, conversions -+

A cache entry's name hashes everything that decides its content; an entry appears whole or not at all (written under
another name, then renamed), so several processes may build the same one at once.
"""

import functools
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.sim.instrument import instrument
from mlxr.runtime.hosts.sim.qualifiers import require_address_spaces
from mlxr.runtime.hosts.sim.signature import Signature, without_comments
from mlxr.runtime.hosts.sim.toolchain import KERNEL_FLAGS, OBJECT_FLAGS, RUNTIME_FLAGS, find_toolchain

ENTRY = "mlxr_sim_entry"
_PRELUDE = ("sim_layout.h", "metal_on_cpu.h", "metal_on_cpu_math.h", "metal_on_cpu_simd.h")
_RUNTIME = ("sim_layout.h", "sim_runtime.h", "sim_runtime.c", "sim_workers.c", "sim_pages.c")
_CHECKS = ("sim_layout.h", "sim_runtime.h", "sim_checks.c")
_CONVERSIONS = ("sim_conversions.c",)

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<(?:metal_\w+|simd/simd\.h)>[^\n]*$", re.MULTILINE)


@functools.cache
def template(name: str) -> str:
    """The text of a file of templates/hosts."""
    return files("mlxr.templates").joinpath("hosts", name).read_text("utf-8")


def cache_folder() -> Path:
    """Where libraries are kept: `$MLXR_CACHE_DIR/sim`, else `$XDG_CACHE_HOME/mlxr/sim`, else `~/.cache/mlxr/sim`.

    Raises:
        HostError: the folder cannot be made.
    """
    if own := os.environ.get("MLXR_CACHE_DIR"):
        root = Path(own)
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlxr"
    folder = root / "sim"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HostError(f"sim: cannot make the cache folder {folder}: {error}; set MLXR_CACHE_DIR") from error
    return folder


def build_runtime() -> Path:
    """The C runtime as a shared library, compiled on first use."""
    return _build_c(_RUNTIME, "runtime.so", ("-shared", "-pthread", "-s"))


def build_kernel(text: str, signature: Signature) -> Path:
    """The library of one kernel, compiled if the cache does not have it.

    Args:
        text: the standalone Metal text.
        signature: its kernel.

    Raises:
        HostError: there is no compiler, or the text does not compile (the message has the compiler's own, with
            line numbers of the text).
    """
    toolchain = find_toolchain()
    ours = (*_PRELUDE, *_RUNTIME, *_CHECKS, *_CONVERSIONS)
    parts = (toolchain.identity, *KERNEL_FLAGS, *OBJECT_FLAGS, *(template(name) for name in ours))
    target = cache_folder() / f"{signature.name[:80]}-{_digest(*parts, repr(signature), text)}.so"
    if target.exists():
        return target
    checks = _build_c(_CHECKS, "checks.o", ("-c", "-mgeneral-regs-only"))
    conversions = _build_c(_CONVERSIONS, "conversions.o", ("-c",))
    require_address_spaces(without_comments(text), signature.name)
    with _workspace(target.parent) as work:
        what = f"kernel {signature.name!r}"
        source = f"{signature.name}.metal"
        (work / "kernel.clcpp").write_text(_translation_unit(text, signature, source), "utf-8")
        command = [*toolchain.clang, *KERNEL_FLAGS, *toolchain.machine, "-S", "-emit-llvm"]
        _run([*command, "kernel.clcpp", "-o", "kernel.ll"], work, what)
        ir = instrument((work / "kernel.ll").read_text("utf-8"), source)
        (work / "checked.ll").write_text(ir, "utf-8")
        command = [*toolchain.clang, *OBJECT_FLAGS, *toolchain.machine, "-c"]
        _run([*command, "checked.ll", "-o", "kernel.o"], work, what)
        _run([*toolchain.linker, "kernel.o", str(checks), str(conversions), "-o", "kernel.so"], work, what)
        (work / "kernel.so").replace(target)
    return target


def _build_c(sources: Sequence[str], output: str, flags: Sequence[str]) -> Path:
    """Our own C files, compiled on first use."""
    toolchain = find_toolchain()
    digest = _digest(toolchain.identity, *toolchain.cc, *RUNTIME_FLAGS, *flags, *(template(name) for name in sources))
    stem, _, suffix = output.partition(".")
    target = cache_folder() / f"{stem}-{digest}.{suffix}"
    if not target.exists():
        with _workspace(target.parent) as work:
            for name in sources:
                (work / name).write_text(template(name), "utf-8")
            files_c = [name for name in sources if name.endswith(".c")]
            _run([*toolchain.cc, *RUNTIME_FLAGS, *flags, *files_c, "-o", output], work, f"its own {stem}")
            (work / output).replace(target)
    return target


def _translation_unit(text: str, signature: Signature, source: str) -> str:
    """Prelude, kernel text and the entry function, each under its own file name."""
    entry = (
        f"MLXR_ENTRY {ENTRY}(const thread ulong* b, const thread MlxrSimGroup* g, uint i) {{\n"
        "    (void)b, (void)g, (void)i;\n"
        f"    {signature.name}({', '.join(signature.arguments)});\n"
        "}\n"
    )
    body = _INCLUDE.sub("", text)
    prelude = "\n".join(f'#line 1 "{name}"\n{template(name)}' for name in _PRELUDE)
    return f'{prelude}\n#line 1 "{source}"\n{body}\n#line 1 "entry"\n{entry}'


def _digest(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode())
        digest.update(part.encode())
    return digest.hexdigest()[:32]


@contextmanager
def _workspace(folder: Path) -> Iterator[Path]:
    """A folder to build in, on the file system of the cache so that a rename suffices."""
    try:
        with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as work:
            yield Path(work)
    except OSError as error:
        raise HostError(f"sim: cannot write to the cache folder {folder}: {error}; set MLXR_CACHE_DIR") from error


def _run(command: Sequence[str], folder: Path, what: str) -> None:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        hint = ""
        if "local address space" in result.stderr:
            hint = "\nsim: declare threadgroup arrays with MLXR_THREADGROUP(type, name, count)"
        raise HostError(f"sim: cannot compile {what}:\n{result.stderr.strip()}{hint}\ncommand: {' '.join(command)}")

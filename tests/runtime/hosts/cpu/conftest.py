"""Fixtures of the cpu host's tests: an empty cache, and compilers that are scripts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mlxr.runtime.hosts.cpu import compile_units, toolchain

MakeCompiler = Callable[[str, str], Path]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no wish for a compiler."""
    monkeypatch.setenv("MLXR_CACHE_DIR", str(tmp_path / "cache"))
    for variable in ("CC", "MLXR_CPU_ARCH", "MLXR_CPU_CFLAGS"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / "cache" / "cpu"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The compiler commands that are run."""
    seen: list[list[str]] = []
    original = compile_units.run_compiler

    def record(command, folder, **options):
        seen.append(list(command))
        return original(command, folder, **options)

    monkeypatch.setattr(compile_units, "run_compiler", record)
    return seen


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeCompiler:
    """Leaves this script as the machine's only compiler: `only("cc", "exit 1")`. `$REAL` in it is the real cc."""
    folder = tmp_path / "bin"
    folder.mkdir()
    real = toolchain.shutil.which("cc") or "cc"
    monkeypatch.setenv("REAL", real)
    monkeypatch.setattr(toolchain, "zig_executable", lambda: None)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CC", raising=False)

    def make(name: str, script: str) -> Path:
        program = folder / name
        program.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
        program.chmod(0o755)
        return program

    return make

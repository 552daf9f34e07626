"""Completion in the shells themselves, as far as they are installed: commands, options, values and models."""

import os
import pty
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from mlxr.cli import COMMANDS, main
from mlxr_tests.serve_process import wait_for
from mlxr_tests.storyteller import TINY

CASES = {
    "mlxr ru": {"run"},
    "mlxr help ca": {"cache"},
    "mlxr run --see": {"--seed"},
    "mlxr cache l": {"list"},
    "mlxr run x --host cp": {"cpu"},
    "mlxr run story": {"storyteller"},
    "mlxr run org/ti": {"org/tiny"},
    "mlxr launch cl": {"claude"},
    "mlxr add note": {"notes.txt"},
}
BASH = 'source script; COMP_LINE="$1"; COMP_POINT=${#1}; _mlxr; printf "%s\\n" "${COMPREPLY[@]}"'
FISH = "source script; complete -C $argv[1]"
ZSH = """PROMPT=; autoload -U compinit; compinit -u -D; source script
told() { print -r -- "$BUFFER" > told.new; mv told.new told; BUFFER=; }
zle -N told; bindkey '^X^T' told; bindkey '^I' complete-word; touch told
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """The working folder, with `mlxr` on the path, and a registered model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLXR_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "mlxr").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mlxr "$@"\n')
    (tmp_path / "mlxr").chmod(0o755)
    (tmp_path / "notes.txt").touch()
    assert main(["add", str(TINY), "--name", "org/tiny"]) == 0
    capsys.readouterr()
    return tmp_path


@pytest.mark.parametrize("shell", ["bash", "fish"])
@pytest.mark.long
def test_shells_complete(folder: Path, shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    program = {"bash": [BASH, "-"], "fish": [FISH]}[shell]
    command = [_script(shell, folder, capsys), *(["--no-config"] if shell == "fish" else []), "-c", *program]
    for line, expected in CASES.items():
        run = subprocess.run([*command, line], capture_output=True, text=True, check=False, timeout=60)
        assert {found.split("\t")[0] for found in run.stdout.split("\n") if found} == expected, (line, run.stderr)


@pytest.mark.long
def test_zsh_completes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It completes only at a terminal: a key shows what the line has become."""
    zsh, told = _script("zsh", folder, capsys), folder / "told"
    ours, its = pty.openpty()
    with subprocess.Popen([zsh, "-f", "-i"], stdin=its, stdout=its, stderr=its, start_new_session=True) as process:
        os.close(its)
        threading.Thread(target=_drain, args=(ours,), daemon=True).start()
        try:
            os.write(ours, ZSH.encode())
            for line, (expected,) in CASES.items():
                wait_for(told.exists)  # the line before, or the shell itself, is done
                told.unlink()
                os.write(ours, f"{line}\t\x18\x14".encode())
                wait_for(told.exists)
                assert told.read_text().strip() == f"{line.rpartition(' ')[0]} {expected}"
        finally:
            process.kill()


def _script(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The shell; its script is in the folder then."""
    if (path := shutil.which(shell)) is None:
        pytest.skip(f"{shell} is not installed")
    assert main(["completion", shell]) == 0
    (folder / "script").write_text(capsys.readouterr().out)
    return path


def _drain(terminal: int) -> None:
    with suppress(OSError):
        while os.read(terminal, 65536):
            pass


def test_what_may_come_next(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def found(*words: str) -> set[str]:
        assert main(["completion", "--words", *words]) == 0
        return {line.split("\t")[0] for line in capsys.readouterr().out.splitlines()}

    assert found("") == {*COMMANDS, "help", "--help", "--version"}
    assert found("run", "") == {"storyteller", "org/tiny", ":files"}
    assert {"--help", "--prompt", "--context"} <= found("run", "--")
    assert found("run", "x", "--kv", "") == {"f32", "f16", "bf16", "q8", "q4"}
    assert found("service", "") == {"install", "remove"}
    assert found("nonsense", "") == set()
    assert found("completion", "") == {"bash", "zsh", "fish"}

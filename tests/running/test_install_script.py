"""packaging/install.sh says what it will do before it does anything; tests/installed.py has it install and remove."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlxr_tests.storyteller import ROOT


def install(home: Path, *words: str, uname: str = "Linux x86_64") -> "subprocess.CompletedProcess[str]":
    """Runs it without a terminal, in a home folder, on a system of this name."""
    programs = home / "programs"
    programs.mkdir(exist_ok=True)
    (programs / "uname").write_text(f'#!/bin/sh\nset -- {uname} "$1"\n[ "$3" = -s ] && echo "$1" || echo "$2"\n')
    (programs / "uname").chmod(0o755)
    return subprocess.run(
        ["sh", str(ROOT / "packaging/install.sh"), "--python", sys.executable, *words],
        env=os.environ | {"HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}"},
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_says_all_and_does_nothing_unless_told(tmp_path: Path) -> None:
    told = install(tmp_path, "--dry-run", "--version", "1.2.3", "--cuda")
    assert told.returncode == 0 and not told.stderr
    for part in (
        f"in {tmp_path}/.local/lib/mlxr, with",
        "install mlxr[cuda]==1.2.3 from",
        f"into {tmp_path}/.local/bin",
    ):
        assert part in told.stdout
    asked = install(tmp_path)
    assert asked.returncode == 1 and "there is no terminal to ask at" in asked.stderr
    assert [*tmp_path.iterdir()] == [tmp_path / "programs"]


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["--sudo"], "there is no option --sudo"),
        (["--prefix"], "--prefix needs a value"),
        (["--bin", "here"], "here: --prefix and --bin take absolute paths"),
        (["--from", "/absent"], "there is no /absent"),
        (["--python", "/bin/false"], "/bin/false is no Python 3.11 or newer"),
        (["--uninstall"], "has no MLXR that this script installed"),
        (["--prefix", "/tmp"], "/tmp is there and is no MLXR that this script installed"),
    ],
)
def test_what_it_refuses(tmp_path: Path, words: list[str], refused: str) -> None:
    told = install(tmp_path, "--yes", *words)
    assert told.returncode == 1 and refused in told.stderr


def test_it_touches_no_program_of_others_and_knows_where_mlxr_runs(tmp_path: Path) -> None:
    (tmp_path / ".local/bin").mkdir(parents=True)
    (tmp_path / ".local/bin/mlxr").write_text("another")
    told = install(tmp_path, "--yes")
    assert told.returncode == 1 and "/.local/bin/mlxr is there and is not this script's" in told.stderr
    assert (tmp_path / ".local/bin/mlxr").read_text() == "another"
    told = install(tmp_path, "--yes", uname="Darwin x86_64")
    assert told.returncode == 1 and "not on Darwin x86_64" in told.stderr

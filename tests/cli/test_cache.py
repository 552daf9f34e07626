"""`mlxr cache`: where the cache is and what it holds, and how it is cleared."""

import json
from pathlib import Path

import pytest

from mlxr.cli import main

HASH = "0123456789abcdef"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with two artifacts, a library and its hash, and a folder of someone else."""
    ours = [f"artifacts/{name}-{HASH}/plan.json" for name in "ab"] + [f"cpu/m-{2 * HASH}.so", "cpu/sha256/m.so"]
    for path in (*ours, "mine/letter.txt"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"x" * 1000)
    monkeypatch.setenv("MLXR_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_list_tells_place_kinds_and_sizes(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "list"]) == 0
    place, *rows = capsys.readouterr().out.splitlines()
    assert place == str(root)
    assert [row.split()[:5] for row in rows[:4:3]] == [
        ["artifacts", "2.0", "KiB", "2", "entries"],
        ["cpu", "2.0", "KiB", "1", "entry"],
    ]
    assert main(["cache", "list", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    kinds = {kind["name"]: (kind["entries"], kind["size_bytes"]) for kind in shown["kinds"]}
    empty = dict.fromkeys(("kv", "packed", "cuda", "sim"), (0, 0))
    assert kinds == {"artifacts": (2, 2000), "cpu": (1, 2000), "mine": (1, 1000)} | empty


def test_clear_removes_the_kinds_and_nothing_else(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "clear", "cpu"]) == 0
    assert capsys.readouterr().out == f"removed 1 entry, 2.0 KiB, from {root}\n"
    assert {path.name for path in root.iterdir()} == {"artifacts", "mine"}
    assert main(["cache", "clear"]) == main(["cache", "clear"]) == 0
    assert [path.name for path in root.rglob("*")] == ["mine", "letter.txt"]
    assert main(["cache", "clear", "mine"]) == 1
    assert "there is no cache 'mine'; there are artifacts, kv, packed, cpu, cuda, sim" in capsys.readouterr().err


def test_clear_leaves_what_mlxr_did_not_write(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "artifacts/thesis.txt").write_text("mine")
    (root / "artifacts/drafts").mkdir()
    (root / "sim").symlink_to(root / "mine")
    assert main(["cache", "clear", "artifacts"]) == 0
    told = capsys.readouterr()
    assert "left drafts, thesis.txt, which MLXR did not write" in told.err
    assert told.out == f"removed 2 entries, 2.0 KiB, from {root}\n"
    assert {path.name for path in (root / "artifacts").iterdir()} == {"drafts", "thesis.txt"}
    assert main(["cache", "clear", "sim"]) == 1
    assert "is a symbolic link" in capsys.readouterr().err and (root / "mine/letter.txt").exists()


def test_a_cache_that_is_not_there_is_empty(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLXR_CACHE_DIR", str(root / "absent"))
    assert main(["cache", "list"]) == main(["cache", "clear"]) == 0
    out = capsys.readouterr().out
    assert f"{root / 'absent'} (does not exist yet)\n" in out
    assert "removed 0 entries, 0 B" in out

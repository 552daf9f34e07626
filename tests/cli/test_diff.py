"""`mlxr diff`: text, JSON, exit codes."""

import json
from pathlib import Path

import pytest

from mlxr.cli import main
from mlxr.compiler.spec.load import dump_spec
from mlxr_tests.specs import compiled, small_spec


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two artifacts, and the spec of the second."""
    folder = tmp_path_factory.mktemp("diff")
    compiled(small_spec()).write(folder / "a")
    spec = small_spec(name="deeper", model__num_layers=3)
    compiled(spec).write(folder / "b")
    (folder / "b.yaml").write_text(dump_spec(spec))
    return folder


def test_text(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["diff", "a", "b.yaml"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("A: small, for metal,") and "\nB: deeper, for metal and cpu," in out
    for line in ("  model.num_layers: 2 -> 3", "  + layer 2: linear attention.q_projected", "kernels of target metal:"):
        assert f"\n{line}" in out
    assert "@@" not in out and err == ""
    assert max(map(len, out.splitlines())) <= 100
    assert main(["diff", "a", "b", "--lines", "--chip", "m4-max"]) == 0
    out = capsys.readouterr().out
    assert "    @@ " in out and "predicted time on Apple M4 Max" in out
    assert main(["diff", "a", "a"]) == 0
    assert "both are the same, byte for byte" in capsys.readouterr().out


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(folder / "a"), str(folder / "b"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["same"] is False and data["a"]["name"] == "small"
    assert {"path": "model.num_layers", "change": "changed", "a": 2, "b": 3} in data["spec"]
    assert {graph["graph"] for graph in data["graphs"]} == {"source", "decode", "prefill"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["nosuch"], "nosuch"),
        (["b", "--chip", "m4-maxi"], 'did you mean "m4-max"?'),
        (["b", "--chip", "h200", "--context", "41"], "--context is 41; the artifact holds 1 to 40"),
    ],
)
def test_errors(
    folder: Path,
    options: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    assert main(["diff", "a", *options]) == 1
    out, err = capsys.readouterr()
    assert out == "" and message in err

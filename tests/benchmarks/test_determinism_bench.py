"""The benchmark of determinism: what each way computes, and what its table says. No speed is judged."""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import determinism
import pytest

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.spec.change import changed
from mlxr_tests.storyteller import storyteller_spec


class FakeModel:
    """Takes so many seconds for a token, by the changes that it is loaded with, and more for each token before it."""

    now = 0.0

    def __init__(self, name: str, *, host: str, threads: int | None, changes: mlxr.Changes) -> None:
        assert (name, host, threads) == ("storyteller", "cpu", 1)
        self.artifact = compile_spec(changed(storyteller_spec(), changes)).artifact
        self.seconds = 4.0 if changes.compute == "exact" else 2.0 if changes.deterministic else 1.0
        self.host = SimpleNamespace(step=self._step, read=lambda logits: logits)

    def _step(self, batch: Any) -> None:
        positions = batch.positions.tolist()
        FakeModel.now += self.seconds * (len(positions) + 1e-6 * sum(positions))

    def __enter__(self) -> "FakeModel":
        return self

    def __exit__(self, *error: object) -> None:
        self.host = None


def test_ways_are_compared_at_the_same_tasks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mlxr, "load", FakeModel)
    monkeypatch.setattr(time, "process_time", lambda: FakeModel.now)
    output = tmp_path / "determinism.json"
    arguments = ["--models", "storyteller", "--rounds", "1", "--cpu-time", "--output", str(output)]
    assert determinism.main(arguments) == 0
    rows = json.loads(output.read_text())["rows"]
    expected = {
        "prompt of 64": 64 + 1e-6 * sum(range(64)),
        "prompt of 512": 512 + 1e-6 * sum(range(512)),
        "decode after 16": 1 + 1e-6 * (16 + 7.5),
        "decode after 900": 1 + 1e-6 * (900 + 7.5),
        "decode, 16 sequences": 16 + 16e-6 * (64 + 7.5),
    }
    assert [row["task"] for row in rows] == list(expected)
    for row in rows:
        seconds = expected[row["task"]]
        wanted = {"fast": seconds, "deterministic": 2 * seconds, "exact": 4 * seconds}
        assert row["seconds"] == pytest.approx(wanted, rel=1e-9)
    last = capsys.readouterr().out.splitlines()[-1]
    assert [word for word in last.split() if word.startswith(("0.", "1."))] == ["1.00", "0.50", "0.25"]


def test_what_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        determinism.main(["--models", "storyteller,8b", "--formats", "q9"])
    assert "no model or format 8b, q9" in capsys.readouterr().err

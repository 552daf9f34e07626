"""`mlxr inspect`: tables, JSON, kernels and pictures on standard output, errors by message and exit code."""

import io
import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from mlxr.cli import main
from mlxr.compiler.artifact import Artifact, KernelCall
from mlxr_tests.specs import compiled, small_spec

ANSI = "\x1b["


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def artifact() -> Artifact:
    return compiled(small_spec())


@pytest.fixture
def folder(artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "200")
    artifact.write(tmp_path / "artifact")
    return str(tmp_path / "artifact")


def test_a_row_for_every_launch(folder: str, artifact: Artifact, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", folder, "--all-launches"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for step in artifact.plan.first.phases:
        of_kernels = [launch for launch in step.launches if isinstance(launch.body, KernelCall)]
        for index, launch in enumerate(of_kernels):
            row = [str(index), launch.op, launch.kernel, *" x ".join(map(str, launch.threadgroups)).split()]
            assert any(line.split()[: len(row)] == row for line in lines), f"{step.name} {index}: {launch.op}"
        calls = [launch for launch in step.launches if launch not in of_kernels]
        assert len(calls) == (9 if step.name == "prefill" else 0), "four in each layer, and the logits"
        for call in calls:
            row = [call.op, "MLX", "matmul", "-", "-", *str(call.when).split()]
            assert any(line.split()[: len(row)] == row for line in lines), call.op


def test_folded_rows_say_what_they_stand_for(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", folder]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "small: " in out
    assert "layers 0-1: each row is 2 launches" in out
    assert "1 sequence or 3 sequences: 12 launches (5 in each of 2 layers, 2 outside)" in out
    assert "14 launches (6 in each of 2 layers, 2 outside), for up to 32 tokens a chunk" in out
    assert sum("attention.qkv_projected" in line for line in out.splitlines()) == 4, "two in decode and two in prefill"
    assert "(not on metal and cuda if tokens >= 32)" in out and "MLX matmul" in out
    assert ANSI not in out


def test_json_has_every_launch_and_stable_keys(
    folder: str, artifact: Artifact, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", folder, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data) == {
        *("name", "digest", "chip", "parameters", "num_layers", "memory", "arena", "kernels", "launches"),
        *("launches_per_decode_token", "launches_per_prefill_chunk", "decode_step", "arena_chosen"),
        *("types", "chunk", "batch_invariant"),
    }
    plan = artifact.plan
    steps = {
        step.name: [launch.op for launch in step.launches if isinstance(launch.body, KernelCall)]
        for step in plan.first.phases
    }
    for name, ops in steps.items():
        assert [launch["op"] for launch in data["launches"] if launch["step"] == name] == ops
    assert set(data["launches"][0]) == {
        *("step", "index", "layer", "op", "op_kind", "kernel", "grid", "threads", "threadgroup_bytes", "when"),
        *("mlx", "feeds_mlx", "inputs", "outputs", "weight_bytes", "weight_bytes_per"),
    }
    assert data["memory"]["total_bytes"] == plan.first.memory.total_bytes
    assert data["launches_per_decode_token"] == [
        {"batch": "1 sequence", "launches": 12},
        {"batch": "3 sequences", "launches": 12},
    ]
    assert [kernel["name"] for kernel in data["kernels"]] == [kernel.name for kernel in plan.first.kernels]
    assert all(kernel["num_launches"] for kernel in data["kernels"])
    qkv = next(launch for launch in data["launches"] if launch["op"] == "layers.1.attention.qkv_projected")
    assert qkv["layer"] == 1
    assert qkv["weight_bytes"] == ((6 + 2 * 2) * 40 * 48 + 48) * 4, "the merged projection and the norm"


@pytest.mark.parametrize("by", ["name", "label"])
def test_a_kernel_is_shown_as_it_is(
    by: str, folder: str, artifact: Artifact, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = artifact.plan.first.kernels[0]
    assert main(["inspect", folder, "--kernel", getattr(entry, by)]) == 0
    assert capsys.readouterr().out == artifact.kernel_text(entry.name)
    assert main(["inspect", folder, "--kernel", entry.name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == artifact.kernel_text(entry.name)


def test_a_terminal_gets_colour_unless_told_not_to(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(*options: str) -> str:
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        assert main(["inspect", folder, *options]) == 0
        return terminal.getvalue()

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = {options: shown(*options) for options in ((), ("--kernel", "embed"))}
    monkeypatch.setenv("NO_COLOR", "1")
    for options, text in coloured.items():
        plain = shown(*options)
        assert ANSI in text
        assert ANSI not in plain


def test_an_unknown_kernel_is_refused_with_the_names(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", folder, "--kernel", "attention"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "no kernel named 'attention'" in err
    assert "did you mean 'attend'? It has embed, qkv," in err


def test_what_is_no_artifact_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path)]) == 1
    assert "is not an artifact" in capsys.readouterr().err


def test_a_picture_is_written(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "graph.svg"
    assert main(["inspect", folder, "--graph", str(path)]) == 0
    assert ET.parse(path).getroot().tag.endswith("svg")
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"wrote {path}\n")
    assert {entry.name for entry in tmp_path.iterdir()} == {"artifact", "graph.svg"}


def test_pictures_are_svg_only(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", folder, "--graph", str(tmp_path / "graph.png")]) == 1
    assert "ends in .svg" in capsys.readouterr().err
    assert not (tmp_path / "graph.png").exists()


def test_an_unwritable_picture_is_an_error(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = tmp_path / "taken.svg"
    taken.mkdir()
    for path in (tmp_path / "absent" / "graph.svg", taken):
        assert main(["inspect", folder, "--graph", str(path)]) == 1
        assert f"cannot write {path}: " in capsys.readouterr().err
    assert {entry.name for entry in tmp_path.iterdir()} == {"artifact", "taken.svg"}


def test_usage_errors_exit_with_2(folder: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["inspect", folder, "--kernel", "embed", "--graph", "graph.svg"])
    assert stopped.value.code == 2

"""`mlxr inspect` of a model that is split over ranks: what each has, its launches and its messages."""

import json
from pathlib import Path

import pytest

from mlxr.cli import main
from mlxr_tests.specs import compiled, small_spec

HIDDEN, VOCAB, CHUNK = 48, 61, 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("split") / "artifact"
    spec = small_spec(parallel={"tensor": 2, "pipeline": 2, "layers": [2, 3]}, model__num_layers=5)
    compiled(spec).write(folder)
    return folder


def test_all_ranks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["tensor"], shown["pipeline"]) == (2, 2)
    assert [rank["layers"] for rank in shown["ranks"]] == [[0, 2], [0, 2], [2, 5], [2, 5]]
    # Two sums a layer and one after the embedding, each of a row of `HIDDEN`, and the row for the next stage.
    given = [step["given_bytes"] for step in shown["ranks"][1]["steps"]]
    assert given == [4 * HIDDEN * 6, 4 * HIDDEN * 6 * CHUNK]
    kinds = [message["kind"] for message in shown["ranks"][3]["steps"][0]["messages"]]
    assert kinds == ["receive", *["all_sum"] * 6, "gather"]
    assert main(["inspect", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "small over 4 ranks: 2 stages of 2 ranks" in text
    assert text.count("\n   3  ") == 3, "the last rank has a row in each of three tables"


def test_the_launches_of_a_rank_with_its_messages(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder), "--rank", "2"]) == 0
    decode = capsys.readouterr().out.split("decode: one")[1].split("prefill:")[0]
    assert "layers 2-4: each row is 3 launches" in decode, "by their numbers in the model, and folded"
    assert [decode.count(f"{kind} over ranks") for kind in ("receive", "all_sum", "gather")] == [1, 2, 1]
    assert main(["inspect", str(folder), "--rank", "0", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["rank"]["heads"] == {"6": [0, 3]}
    assert {launch["layer"] for launch in shown["launches"]} == {None, 0, 1}


@pytest.mark.parametrize("option", ["--kernel=embed", "--graph=graph.svg", "--all-launches"])
def test_other_options_need_a_rank(folder: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder), option]) == 1
    assert "add --rank N (0 to 3) to " + option.split("=", maxsplit=1)[0] in capsys.readouterr().err


def test_kernel_and_picture_of_a_rank(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder), "--rank", "3", "--graph", str(tmp_path / "graph.svg")]) == 0
    assert main(["inspect", str(folder), "--rank", "1", "--kernel", "embed"]) == 0
    assert "[31, 48] f32" in capsys.readouterr().out, "its rows of the table"
    assert main(["inspect", str(folder), "--rank", "4"]) == 1
    assert "ranks 0 to 3" in capsys.readouterr().err

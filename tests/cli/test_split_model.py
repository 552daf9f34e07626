"""A model that is split over ranks: how `mlxr-compile` makes it and sums it up, and what other commands say of it."""

import json
from pathlib import Path

import pytest

import mlxr
from mlxr.cli import main
from mlxr.compiler.artifact import load_artifact
from mlxr.compiler.cli import main as compile_main
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import HostError
from mlxr.compiler.spec.change import Changes, changed
from mlxr.compiler.spec.parallel import Parallel
from mlxr.loading.artifact_cache import cache_entry
from mlxr_tests.storyteller import Q8_0, storyteller_spec


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact for two ranks."""
    folder = tmp_path_factory.mktemp("split") / "artifact"
    compile_spec(storyteller_spec(parallel=Parallel(tensor=2)), targets=("metal", "cpu")).artifact.write(folder)
    return folder


@pytest.mark.parametrize(
    ("options", "split"),
    [
        pytest.param("--tensor-parallel 2", Parallel(tensor=2), marks=pytest.mark.long),
        ("--tensor-parallel 2 --shares 0.7,0.3", Parallel(tensor=2, shares=(0.7, 0.3))),
        ("--pipeline-parallel 2 --layers 4,2", Parallel(pipeline=2, layers=(4, 2))),
        pytest.param(
            "--tensor-parallel 2 --pipeline-parallel 3", Parallel(tensor=2, pipeline=3), marks=pytest.mark.long
        ),
    ],
)
def test_options_make_the_split(
    options: str, split: Parallel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = tmp_path / "artifact"
    arguments = ["storyteller", "--target", "cpu", *options.split(), "-o", str(artifact)]
    assert compile_main([*arguments, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    written = load_artifact(artifact)
    assert written.spec.parallel == split and shown["digest"] == written.digest
    assert shown["parallel"] == {"tensor": split.tensor, "pipeline": split.pipeline, "ranks": split.size}
    assert [rank["rank"] for rank in shown["ranks"]] == list(range(split.size))
    assert sum(last - first for first, last in (rank["layers"] for rank in shown["ranks"])) == 6 * split.tensor
    for number, rank in enumerate(shown["ranks"]):
        plan = written.of_rank(number).plan
        assert rank["memory"]["cpu"]["weights_bytes"] == plan.first.memory.weights_bytes
        assert rank["needed_bytes"] == plan.first.memory.total_bytes
    assert compile_main(arguments) == 0
    text = capsys.readouterr().out
    assert all(f"  rank {rank}  " in text for rank in range(split.size))
    assert f"run it with: mlx.launch -n {split.size} -- mlxr run {artifact} --weights W" in text


def test_the_summary_of_two_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["storyteller", "--target", "cpu", "--tensor-parallel", "2"]
    assert compile_main(arguments) == 0
    text = capsys.readouterr().out
    assert "split over 2 ranks: 1 stage of 2 ranks, for targets cpu" in text
    assert "heads 4-7 of 8 on KV head 1 of 2, MLP columns 640-1279 of 1280, vocabulary rows 2048-4095 of 4096" in text
    # A sum after embedding, attention and MLP, and half of the logits: all f32 on cpu.
    assert compile_main([*arguments, "--json"]) == 0
    given = {"count": 14, "given_bytes": (1 + 2 * 6) * 512 * 4 + 2048 * 4, "by_kind": {"all_sum": 13, "gather": 1}}
    assert [rank["decode_messages"] for rank in json.loads(capsys.readouterr().out)["ranks"]] == [given, given]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--tensor-parallel 1", "argument --tensor-parallel: 1 does not split anything; expected 2 to 256"),
        ("--tensor-parallel two", "argument --tensor-parallel: 'two' is not a whole number"),
        ("--pipeline-parallel 257", "argument --pipeline-parallel: 257 does not split anything; expected 2 to 256"),
        ("--layers 3,3", "--layers is for a split: add --pipeline-parallel 2"),
        ("--pipeline-parallel 3 --layers 3,3", "layers has 2 numbers for 3 stages: give one for each"),
        ("--pipeline-parallel 2 --layers 6,0", "argument --layers: '6,0': every stage has at least 1 layer"),
        ("--tensor-parallel 2 --shares 0.5,0.6", "the sum of shares is 1.1: give fractions whose sum is 1"),
        ("--tensor-parallel 2 --shares a,b", "argument --shares: 'a,b' are not numbers; expected fractions such as"),
        ("--tensor-parallel 2 --shares 0,1", "argument --shares: '0,1': every share is above 0, and 1 at most"),
    ],
)
def test_options_that_make_no_split(options: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        compile_main(["storyteller", *options.split()])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--pipeline-parallel 2 --layers 3,2", "parallel.layers: layers are 5 together, the model has 6"),
        ("--pipeline-parallel 7", "parallel.pipeline: pipeline has 7 stages, the model only 6 layers"),
        ("--tensor-parallel 64", "the 4 query heads of a KV head cannot be divided among 32 ranks"),
    ],
)
def test_splits_that_the_model_does_not_allow(options: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert compile_main(["storyteller", *options.split()]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("run ARTIFACT --weights W --prompt A", "mlx.launch -n 2 -- mlxr"),
        ("chat ARTIFACT --weights W", "mlx.launch -n 2 -- mlxr"),
        ("bench ARTIFACT --weights W", "mlx.launch -n 2 -- mlxr"),
        ("logits ARTIFACT --weights W --tokens 1 -o x.npy", "mlx.launch -n 2 -- mlxr"),
        ("perplexity ARTIFACT --weights W --text notes.txt", "mlx.launch -n 2 -- mlxr"),
        ("serve --distributed ARTIFACT --weights W", "mlx.launch -n 2 -- mlxr"),
        ("serve --distributed storyteller", "mlx.launch -n 2 -- mlxr serve --distributed storyteller; on this machine"),
        ("serve ARTIFACT", "mlx.launch -n 2 -- mlxr serve --distributed ARTIFACT --weights W"),
        ("serve --model a=ARTIFACT", "mlx.launch -n 2 -- mlxr serve --distributed ARTIFACT --weights W"),
        ("serve storyteller --draft ARTIFACT", "mlx.launch -n 2 -- mlxr serve --distributed ARTIFACT --weights W"),
        ("add ARTIFACT --weights W --name a", "mlx.launch -n 2 -- mlxr run ARTIFACT --weights W"),
        ("tune ARTIFACT -o tuned", "mlx.launch -n 2 -- mlxr run ARTIFACT --weights W"),
        ("diff ARTIFACT storyteller", "mlx.launch -n 2 -- mlxr run ARTIFACT --weights W"),
        ("tokenize ARTIFACT --prompt A", "comes without a tokenizer"),
        ("import ARTIFACT", "is not a model"),
    ],
)
def test_commands_say_how_to_run_it(
    command: str,
    says: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("Once upon a time")
    words = {"ARTIFACT": str(folder), "W": str(Q8_0), "a=ARTIFACT": f"a={folder}"}
    assert main([words.get(word, word) for word in command.split()]) == 1
    told = capsys.readouterr().err
    assert says.replace("ARTIFACT", str(folder)) in told or says in told
    assert told.startswith("error: ") and "Traceback" not in told


def test_a_part_alone_is_not_loaded(folder: Path) -> None:
    with pytest.raises(HostError, match=r"rank 1's part of storyteller, .* load the whole artifact on each of its 2"):
        mlxr.load(load_artifact(folder).of_rank(1), Q8_0, host="cpu")


def test_each_split_has_its_place_in_the_cache() -> None:
    spec = storyteller_spec()
    splits = [None, Parallel(tensor=2), Parallel(tensor=2, shares=(0.5, 0.5)), Parallel(pipeline=2)]
    assert len({cache_entry(changed(spec, Changes(parallel=split))) for split in splits}) == len(splits)

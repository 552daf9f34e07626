"""The GPU benchmark, on a tiny model and hosts that need no GPU."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gpu_peers
import mlx.core as mx
import numpy as np
import pytest
from gpu.check import Checker, WrongOutputError, check_against_peer, relative_norm
from gpu.group import in_turns
from gpu.ours import Loaded, Ours, compiled
from gpu.results import Results
from gpu.theirs import Theirs, make_model
from gpu.weights import RandomWeights, pattern
from gpu.work import FORMATS, MODELS, Row, chosen_rows, rows_of, spec_document

from mlxr.runtime.hosts.reference.host import ReferenceHost
from mlxr.runtime.weights.load_weights import load_buffers

SHAPE = MODELS["toy"].shape
MACHINE = {"device": "a card", "mlxr": "mlxr 1"}


def row(format_name: str = "bf16", kind: str = "decode", tokens: int = 24, batch: int = 1) -> Row:
    return Row("toy", format_name, kind, tokens, batch)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def weights() -> dict[str, RandomWeights]:
    return {name: RandomWeights(SHAPE, name) for name in FORMATS}


def test_a_turn_of_whole_work_is_the_median_after_one_that_does_not_count() -> None:
    times = iter([90.0, 1.0, 9.0, 2.0, 80.0, 5.0])
    engine = in_turns(lambda: next(times))
    assert (engine(3), engine(1)) == (2.0, 5.0)


@pytest.mark.parametrize("format_name", ["bf16", "affine4"])
def test_buffers_are_those_of_a_file_with_the_same_tensors(
    weights: dict[str, RandomWeights], format_name: str, tmp_path: Path
) -> None:
    plan = compiled(spec_document(row(format_name))).plan
    mx.save_safetensors(str(tmp_path / "model.safetensors"), dict(weights[format_name].mlx_lm_arrays()))
    wanted = load_buffers(plan.weights, plan.ignored_tensors, tmp_path)
    made = weights[format_name].buffers(plan.weights)
    assert made.keys() == wanted.keys()
    for name, array in made.items():
        assert array.dtype == wanted[name].dtype and array.shape == wanted[name].shape, name
        assert mx.array_equal(array, wanted[name]), name


def test_blocks_lie_where_the_layout_has_them(weights: dict[str, RandomWeights]) -> None:
    plan = compiled(spec_document(row("q4_k"))).plan
    made = weights["q4_k"].buffers(plan.weights)
    for weight in plan.weights:
        if str(weight.layout.dtype) != "u8":
            continue
        parts = [np.array(weights["q4_k"][part.safetensors[0].tensor][0]).reshape(-1) for part in weight.parts]
        assert np.array_equal(np.array(made[weight.name]), np.concatenate(parts)), weight.name


def test_numbers_of_every_format_scatter_alike(weights: dict[str, RandomWeights]) -> None:
    plan = compiled(spec_document(row(), exact=True)).plan
    for name, made in weights.items():
        numbers = np.array(made.numbers(plan.weights)["layers.1.mlp.down"])
        assert np.isfinite(numbers).all()
        assert abs(numbers.mean()) < 0.002 and 0.015 < numbers.std() < 0.025, name


def test_a_pattern_does_not_begin_anew_with_each_row() -> None:
    numbers = pattern(9_000_000, 3).reshape(-1, 1000)
    assert numbers.dtype == mx.bfloat16
    assert len({tuple(first) for first in np.array(numbers[:, :4].astype(mx.float32)).tolist()}) > 4000


@pytest.mark.parametrize("one", [row(), row("affine4"), row("q4_k"), row(batch=3), row(tokens=1100)])
def test_bytes_are_what_the_plan_reads(weights: dict[str, RandomWeights], one: Row) -> None:
    ours = Ours(one, spec_document(one), "reference", weights[one.format])
    # The plan counts what lies where; the row counts numbers, without norms and without the new token's keys.
    assert one.size_bytes == pytest.approx(ours.planned_bytes, rel=0.02)


def test_the_floor_is_the_larger_of_two_times() -> None:
    one = Row("llama-3-8b", "bf16", "decode", 512)
    assert one.size_bytes == pytest.approx(2 * 7.5e9, rel=0.01)
    assert one.operations == pytest.approx(2 * 7.5e9, rel=0.03)
    assert one.floor_seconds(3e12, 8e14) == pytest.approx(one.size_bytes / 3e12)
    assert one.floor_seconds(1e18, 8e14) == pytest.approx(one.operations / 8e14)
    prompt = replace(one, kind="prefill", tokens=4096)
    assert prompt.operations == pytest.approx(4096 * 2 * 6.98e9 + 2 * 4096**2 * 32 * 4096, rel=0.02)


def test_rows_are_named_apart_and_found_by_patterns() -> None:
    names = [one.id for model in MODELS for one in rows_of(model)]
    assert len(set(names)) == len(names)
    found = {one.id for one in chosen_rows("llama-3-8b/*/decode-512,tinyllama/bf16/batch-*")}
    assert found == {
        *(f"llama-3-8b/{name}/decode-512" for name in FORMATS),
        "tinyllama/bf16/batch-16",
        "tinyllama/bf16/batch-64",
    }
    with pytest.raises(SystemExit, match="toy/bf16 is no row"):
        chosen_rows("toy/bf16")


@pytest.mark.parametrize("one", [row("affine4"), row("q4_k", "prefill", 40), row(batch=3)])
def test_right_output_passes(weights: dict[str, RandomWeights], one: Row) -> None:
    checked = Checker(weights[one.format], "reference").check(one, spec_document(one))
    assert 0 < checked.error < 0.02
    assert checked.rows == (2 if one.kind == "prefill" else 3 * one.batch)


def test_a_wrong_weight_is_seen(weights: dict[str, RandomWeights], monkeypatch: pytest.MonkeyPatch) -> None:
    one, checker = row(), Checker(weights["bf16"], "reference")
    monkeypatch.setattr(RandomWeights, "as_read_by", _with_a_row_exchanged)
    with pytest.raises(WrongOutputError, match=r"differ from the reference by .* at most 0\.02"):
        checker.check(one, spec_document(one))


def _with_a_row_exchanged(self: RandomWeights, host: str, plan: list) -> dict[str, mx.array]:  # type: ignore[type-arg]
    found = self.numbers(plan)
    found["layers.0.mlp.down"] = mx.roll(found["layers.0.mlp.down"], 1, axis=0)
    return found


def test_output_that_is_no_number_is_seen(weights: dict[str, RandomWeights], monkeypatch: pytest.MonkeyPatch) -> None:
    one, read = row(), ReferenceHost.read
    monkeypatch.setattr(ReferenceHost, "read", lambda self, logits: read(self, logits) * np.nan)
    with pytest.raises(WrongOutputError, match="by nan"):
        Checker(weights["bf16"], "reference").check(one, spec_document(one))


def test_a_wrong_token_is_seen(weights: dict[str, RandomWeights], monkeypatch: pytest.MonkeyPatch) -> None:
    one, generate = row(), Loaded.generate

    def wrong(self: Loaded, *args: object) -> SimpleNamespace:
        completions = generate(self, *args).finish()  # type: ignore[arg-type]
        completions[0].token_ids[5] += 1
        return SimpleNamespace(finish=lambda: completions)

    monkeypatch.setattr(Loaded, "generate", wrong)
    with pytest.raises(WrongOutputError, match="generated token 6 is not the reference's"):
        Checker(weights["bf16"], "reference").check(one, spec_document(one))


def test_all_layers_agree_with_mlx_lm(weights: dict[str, RandomWeights]) -> None:
    one = row()
    ours = Ours(one, spec_document(one), "reference", weights["bf16"])
    theirs = Theirs(one, make_model("toy", weights["bf16"]), SHAPE)
    tokens = [5, 300, 7, 31]
    assert check_against_peer(ours.logits(tokens), theirs.logits(tokens)) < 0.05
    with pytest.raises(WrongOutputError, match="mlx-lm"):
        check_against_peer(ours.logits(tokens), theirs.logits([5, 300, 7, 32]))


@pytest.mark.long
def test_turns_go_on_when_sequences_have_grown(weights: dict[str, RandomWeights]) -> None:
    one = row(batch=3)
    ours = Ours(one, spec_document(one), "reference", weights["bf16"])
    theirs = Theirs(one, make_model("toy", weights["bf16"]), SHAPE)
    for engine in (ours, theirs):
        for _ in range(4):
            assert engine.decode(100) > 0
        engine.close()


def test_relative_norm_is_not_a_number_where_anything_is() -> None:
    assert relative_norm(np.array([1.0, 2.0]), np.array([1.0, 2.0])) == 0
    assert np.isnan(relative_norm(np.array([np.nan, 2.0]), np.array([1.0, 2.0])))


def test_results_are_gone_on_with(tmp_path: Path) -> None:
    first = Results(tmp_path / "a.json")
    first.start(MACHINE, "command")
    times = {"mlxr": [0.2, 0.1, 0.3], "mlx-lm": [0.4, 0.5, 0.6]}
    limits = {"copy_bytes_per_second": [1e9], "operations_per_second": [1e12]}
    first.add(row(), {"seconds": times, "error": 0.004, **limits})
    second = Results(tmp_path / "b.json", tmp_path / "a.json")
    second.start(MACHINE, "another")
    assert second.has(row()) and second.seconds(row(), "mlxr") == 0.2
    assert second.limit(row()) == row().size_bytes / 1e9
    assert second.cells(row())[:6] == (
        "toy/bf16/decode-24",
        "engine",
        "5",
        f"{100 * row().size_bytes / 2e8:.0f} %",
        "2",
        "2.50 x",
    )
    assert "2.50 x" in second.table() and "| 2.50 x |" in second.markdown()
    second.fail(row(), "OSError: no /some/folder/file")
    again = Results(tmp_path / "b.json")
    assert not again.has(row()) and "toy/bf16/decode-24: OSError: no file" in again.table()
    with pytest.raises(SystemExit, match="times of different devices"):
        Results(tmp_path / "a.json").start(MACHINE | {"device": "another card"}, "command")
    (tmp_path / "a.json").write_text("{", encoding="utf-8")
    with pytest.raises(SystemExit, match="cannot be gone on with"):
        Results(tmp_path / "a.json")


def test_a_process_that_dies_costs_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, asked = Results(tmp_path / "benchmarks/gpu-peers.json"), []

    class Dying:
        """Dies in the first row, then does the rest."""

        def __init__(self, command: list[str]) -> None:
            only = next(word for word in command if word.startswith("--only="))
            asked.append(only.removeprefix("--only="))

        def wait(self, timeout: float) -> int:
            inside = Results(results.path)
            inside.begin(row() if len(asked) == 1 else row(tokens=1100))
            if len(asked) == 1:
                return -11
            inside.add(row(tokens=1100), {"seconds": {"mlxr": [1.0]}})
            return 0

    monkeypatch.setattr(gpu_peers.subprocess, "Popen", Dying)
    monkeypatch.setattr(sys, "argv", ["gpu_peers.py", "--toy", "--output", str(tmp_path)])
    args = gpu_peers._arguments()
    found = gpu_peers._measure_group([row(), row(tokens=1100)], args, results)
    assert asked == ["toy/bf16/decode-24,toy/bf16/decode-1100", "toy/bf16/decode-1100"]
    assert found.data["failures"] == {"toy/bf16/decode-24": "its process ended with code -11"}
    assert found.has(row(tokens=1100))


@pytest.mark.long
def test_two_rows_from_the_command_line(tmp_path: Path) -> None:
    """Only host cuda keeps weights unpacked, so that of others a prompt is measured in one way."""
    rows = ("toy/affine4/decode-24", "toy/affine4/prefill-40")
    command = [sys.executable, gpu_peers.__file__, "--toy", "--host=reference", f"--only={','.join(rows)}"]
    command += ["--rounds=1", "--seconds=0.01", "--minutes=5", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in rows)
    found = json.loads((tmp_path / "benchmarks/gpu-peers.json").read_text(encoding="utf-8"))
    assert all(found["rows"][name]["seconds"].keys() == {"mlxr", "mlx-lm"} for name in rows)
    again = subprocess.run([*command, "--host=nonsense"], capture_output=True, text=True, check=False)
    assert again.returncode == 0 and "nonsense" not in again.stderr, "the rows are there: nothing is measured"

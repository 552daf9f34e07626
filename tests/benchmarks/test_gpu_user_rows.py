"""User rows of the GPU benchmark: who is asked what, what the files hold, what the table says. No speed is judged."""

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu_peers
import mlx.core as mx
import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize
from gpu import user_group
from gpu.check import relative_norm
from gpu.k_blocks import q4_k, q6_k
from gpu.model_files import ModelFiles
from gpu.results import Results
from gpu.user_cells import percentile, user_cells
from gpu.user_group import UserGroup
from gpu.user_rows import WORK, UserRow, user_rows_of
from gpu.work import chosen_rows
from peers import beside_llama
from peers.beside_llama import Programs
from peers.user_mlx_lm import MlxLmUser
from peers.user_mlxr import MlxrUser
from peers.worker import EngineError, _answer, random_tokens, timed

import mlxr
from mlxr.runtime.weights.open_weights import open_weights

VOCAB = 384
SHORT, LONG = (within for within, _ in WORK["toy"].ranges)


class FakeWorker:
    """Answers as a worker does, at once, and keeps what it was asked."""

    gap = 0.1
    failing = ""
    asked: list[tuple[str, str, dict[str, Any]]]

    def __init__(self, module: str, threads: int, log: object) -> None:
        self.name = module

    def ask(self, do: str, **details: Any) -> dict[str, Any]:
        FakeWorker.asked.append((self.name, do, details))
        if do == FakeWorker.failing:
            raise EngineError("its process ended with code -9")
        if do == "load":
            return {"vocab": VOCAB, "types": "activations bf16"}
        if do == "gap":
            return {"gap": FakeWorker.gap}
        answers = [[5] * (1 + details["tokens"]) for _ in details["prompts"]]
        return {"first_seconds": 0.5, "next_seconds": 0.25, "answers": answers}

    def close(self) -> None:
        FakeWorker.asked.append((self.name, "close", {}))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, dict[str, Any]]]:
    monkeypatch.setattr(user_group, "Worker", FakeWorker)
    monkeypatch.setattr(FakeWorker, "asked", [], raising=False)
    return FakeWorker.asked


def measure(
    rows: list[UserRow], tmp_path: Path, deadline: float = float("inf"), host: str | None = None, llama: str = ""
) -> Results:
    results = Results(tmp_path / "results.json")
    files: Any = SimpleNamespace(
        source=lambda name: f"model-{name}",
        gguf=lambda name: Path(f"model-{name}.gguf"),
        peer=lambda name: "peer",
        judge=lambda name: "twin" if "q4" in name else "peer",
    )
    args = Namespace(host=host, turns=3, deadline=deadline, llama_bench=llama, llama_batched_bench=llama)
    with UserGroup(rows, files, args, results, sys.stderr) as group:
        group.run()
    return results


def rows_of_format(name: str) -> list[UserRow]:
    return [row for row in user_rows_of("toy") if row.format == name]


def test_no_length_comes_twice_but_where_a_row_says_so(asked: list[Any], tmp_path: Path) -> None:
    rows = rows_of_format("bf16")
    results = measure(rows, tmp_path)
    found = results.data["rows"]
    assert found.keys() == {row.id for row in rows}
    new = [found[row.id]["lengths"] for row in rows if row.kind in ("first", "unseen")]
    lengths = [length for some in new for length in some]
    assert len(lengths) == len(set(lengths)) == 3 + 5 + 3
    assert WORK["toy"].tokens not in lengths, "which the row of decoding has"
    for within, some in ((SHORT, new[1]), (LONG, new[2])):
        assert all(within.least <= length <= within.most for length in some)
        assert found[UserRow("toy", "bf16", "seen", within).id]["lengths"] == some


def test_engines_take_turns_at_the_same_prompts_and_none_comes_twice(asked: list[Any], tmp_path: Path) -> None:
    measure(rows_of_format("bf16"), tmp_path)
    streams = [(name, details["prompts"]) for name, do, details in asked if do == "stream"]
    ours, theirs = streams[::2], streams[1::2]
    assert {name for name, _ in ours} == {"peers.user_mlxr"} and {name for name, _ in theirs} == {"peers.user_mlx_lm"}
    assert [prompts for _, prompts in ours] == [prompts for _, prompts in theirs]
    every = [tuple(prompt) for _, prompts in ours for prompt in prompts]
    assert len(every) == len(set(every))
    assert len(ours[-1][1]) == WORK["toy"].batch


def test_processes_are_one_an_engine_and_one_for_several_sequences(asked: list[Any], tmp_path: Path) -> None:
    measure(rows_of_format("q4_k_m"), tmp_path)
    loads = sorted((name, d["source"], d["batch"], d["host"]) for name, do, d in asked if do == "load")
    assert loads == [
        ("peers.user_mlx_lm", "peer", 1, None),
        ("peers.user_mlx_lm", "twin", 1, None),
        ("peers.user_mlxr", "model-q4_k_m", 1, None),
        ("peers.user_mlxr", "model-q4_k_m", 3, None),
    ]
    assert sum(do == "close" for _, do, _ in asked) == 4
    FakeWorker.asked.clear()
    measure(rows_of_format("bf16")[:1], tmp_path, host="reference")
    loads = [(name, d["batch"], d["host"]) for name, do, d in asked if do == "load"]
    assert sorted(loads) == [("peers.user_mlx_lm", 1, None), ("peers.user_mlxr", 1, "reference")]


def test_llama_cpp_is_asked_for_all_rows_of_a_file_at_once(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def output(command: list[str], most_seconds: float) -> str:
        commands.append(command)
        if command[0] == "llama-batched":
            return 'build\n{"pl": 3, "speed_tg": 60.0}\n{"pl": 3, "speed_tg": 50.0}\n'
        asked_for = [(25, 0), (50, 0)] if "25,50" in command else [(0, 24)]
        runs = [{"n_prompt": n, "n_depth": depth, "avg_ts": rate} for n, depth in asked_for for rate in (50.0, 100.0)]
        return json.dumps(runs)

    monkeypatch.setattr(beside_llama, "output", output)
    monkeypatch.setattr(user_group, "Programs", lambda *given: Programs("llama-bench", "llama-batched", *given[2:]))
    rows = rows_of_format("bf16")
    found = measure(rows, tmp_path, llama="llama-bench").data["rows"]
    seconds = {row.kind: found[row.id]["seconds"].get("llama.cpp") for row in rows if row.within != LONG}
    assert seconds == {"first": None, "unseen": [0.25], "seen": [0.25], "decode": [0.01], "batch": [0.05]}
    assert len(commands) == 3 and all("model-bf16.gguf" in command for command in commands)
    measure(rows_of_format("affine4"), tmp_path, llama="llama-bench")
    assert len(commands) == 3, "which it cannot read"


def test_a_row_alone_is_measured_as_among_others(asked: list[Any], tmp_path: Path) -> None:
    seen = UserRow("toy", "bf16", "seen", SHORT)
    found = measure([seen], tmp_path).data["rows"][seen.id]
    prompts = [d["prompts"][0] for name, do, d in asked if do == "stream" and name == "peers.user_mlxr"]
    assert [len(prompt) for prompt in prompts[3:]] == found["lengths"] * 2, "three prompts, new lengths, again"


def test_wrong_answers_are_not_reported(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of_format("bf16")
    for gap in (3.9, float("nan")):
        monkeypatch.setattr(FakeWorker, "gap", gap)
        results = measure(rows, tmp_path)
        assert not results.data["rows"] and results.data["failures"].keys() == {row.id for row in rows}
        assert "standard deviations below the largest" in capsys.readouterr().err


def test_what_comes_after_a_worker_that_failed_is_not_measured(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeWorker, "failing", "gap")
    results = measure(rows_of_format("bf16"), tmp_path)
    assert all("code -9" in why for why in results.data["failures"].values())
    assert not results.data["rows"] and asked[-1][1] == "close"


def test_time_that_is_up_leaves_rows_for_later(asked: list[Any], tmp_path: Path) -> None:
    results = measure(rows_of_format("bf16"), tmp_path, deadline=0.0)
    assert not results.data["rows"] and not results.data["failures"]


def test_users_load_by_the_public_function_with_its_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, Any]] = []

    def load(*given: Any, **options: Any) -> Any:
        calls.append((given, options))
        plan = SimpleNamespace(vocab_size=VOCAB)
        return SimpleNamespace(
            host=SimpleNamespace(name="cpu", notes=()), types="f32", artifact=SimpleNamespace(plan=plan)
        )

    monkeypatch.setattr(mlxr, "load", load, raising=False)
    for options in ({"batch": 1, "host": None}, {"batch": 16}, {"batch": 1, "host": "reference"}):
        assert MlxrUser().load({"source": "folder", "threads": 2, **options})["vocab"] == VOCAB
    assert calls == [
        (("folder",), {}),
        (("folder",), {"changes": mlxr.Changes(sequences=16)}),
        (("folder",), {"host": "reference"}),
    ]


def test_tokens_are_timed_once_each_prompt_has_its_first() -> None:
    def events() -> Iterator[tuple[int, int]]:
        yield from ((0, 10), (0, 11), (1, 20))
        for step in range(100):
            yield from ((0, 12 + step), (1, 21 + step))

    found = timed(0.0, events(), 2, 3)
    assert found.answers == [[10, 11, 12, 13, 14], [20, 21, 22, 23]]
    assert found.first_seconds > 0 and found.next_seconds > 0


@pytest.mark.parametrize("make", [q4_k, q6_k])
def test_blocks_hold_the_same_numbers_as_the_format_of_mlx(make: Any) -> None:
    made = make(count=40)
    numbers = dequantize(made.blocks, made.type)
    scales, biases = (mx.array(plane).view(mx.bfloat16).astype(mx.float32) for plane in (made.scales, made.biases))
    theirs = mx.dequantize(mx.array(made.codes), scales, biases, group_size=64, bits=made.bits)
    assert np.array_equal(np.array(theirs), numbers)
    assert 0.015 < numbers.std() < 0.025 and abs(numbers.mean()) < 0.002
    part = made.repeated(12).part(35, 3, 1024)[0]
    assert np.array_equal(part, np.roll(made.blocks, -35, axis=0)[:12].reshape(3, -1))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return ModelFiles("toy", tmp_path_factory.mktemp("models"), lambda text: None)


def test_llama_cpps_file_has_the_numbers_of_the_folder(files: ModelFiles) -> None:
    """Llama's queries in another order."""
    folder = mx.load(str(files.source("bf16") / "model.safetensors"))
    theirs = {t.name: t.data.view(np.uint16) for t in GGUFReader(files.gguf("bf16")).tensors if len(t.shape) > 1}
    pairs = {"lm_head": "output", "model.layers.2.mlp.down_proj": "blk.2.ffn_down"}
    pairs |= {"model.layers.1.self_attn.q_proj": "blk.1.attn_q"}
    for name, other in pairs.items():
        ours, found = np.array(folder[f"{name}.weight"].view(mx.uint16)), theirs[f"{other}.weight"]
        assert np.array_equal(ours, found) is ("attn_q" not in other)
        assert np.array_equal(np.sort(ours, axis=0), np.sort(found, axis=0)), name


def test_the_gguf_file_is_llama_cpps_mixture(files: ModelFiles) -> None:
    tensors = open_weights(files.source("q4_k_m")).tensors
    more = {name for name, info in tensors.items() if str(info.type).lower() == "q6_k"}
    assert more == {"output.weight", *(f"blk.{i}.{name}.weight" for i in (2,) for name in ("attn_v", "ffn_down"))}
    assert {str(info.type).lower() for info in tensors.values()} == {"f32", "q4_k", "q6_k"}


@pytest.mark.parametrize("name", ["bf16", "q4_k_m"])
def test_what_both_engines_read_is_the_same_model(files: ModelFiles, name: str) -> None:
    """Both in f32 they agree; as users run them, each token is one that the other's logits allow."""
    ours, theirs = MlxrUser(), MlxLmUser()
    assert ours.load({"source": str(files.source(name)), "batch": 1, "host": "reference"})["vocab"] == VOCAB
    theirs.load({"source": str(files.judge(name)), "batch": 1})
    prompt = random_tokens(23, VOCAB)
    (answer,) = _answer(ours, {"do": "stream", "prompts": [prompt], "tokens": 4})["answers"]
    assert len(answer) == 5
    assert _answer(theirs, {"do": "gap", "prompt": prompt, "answer": answer})["gap"] < 0.5
    with pytest.raises(NotImplementedError, match="MlxrUser judges no answers"):
        ours.gap(prompt, answer)
    assert theirs.gap(prompt, [(token + 100) % VOCAB for token in answer]) > user_group.GAP
    assert ours._model.tokenizer is not None, "text is made, as users have it made"
    exact = mlxr.Changes(activation_dtype="f32", cache_dtype="f32")
    logits = mlxr.load(files.source(name), host="reference", changes=exact).logits(prompt)[-1]
    theirs._model.set_dtype(mx.float32)
    assert relative_norm(logits, np.array(theirs._model(mx.array([prompt]))[0, -1])) < 1e-5


def test_the_table_has_medians_percentiles_and_ratios() -> None:
    row = UserRow("toy", "bf16", "unseen", SHORT)
    assert percentile([1.0, 2.0, 3.0, 4.0, 5.0], 95) == pytest.approx(4.8)
    found = {"seconds": {"mlxr": [0.01, 0.02, 0.03], "mlx-lm": [0.06, 0.04, 0.05]}, "lengths": [9, 8, 7], "gap": 0.25}
    again = {"seconds": {"mlxr": [0.01, 0.01, 0.01]}, "lengths": [9, 8, 7]}
    shown = ("20.0 ms", "29.0 ms", "", "", "50.0 ms", "59.0 ms", "2.50 x", "2.03 x")
    assert user_cells(row, found, again) == (row.id, "user", *shown, "2.00 x", "0.25")
    assert user_cells(row, found, again | {"lengths": [1]})[-2] == ""
    steps: dict[str, Any] = {"seconds": {"mlxr": [0.01, 0.02, 0.03], "mlx-lm": [0.1]}, "gap": 0.0}
    assert user_cells(UserRow("toy", "bf16", "decode"), steps, {})[2:9] == ("50", "", "", "", "10", "", "5.00 x")
    steps["seconds"]["llama.cpp"] = [0.03]
    assert user_cells(UserRow("toy", "bf16", "batch"), steps, {})[2:9] == (
        "150",
        "",
        "100",
        "1.50 x",
        "30",
        "",
        "5.00 x",
    )
    first = {"seconds": {"mlxr": [4.0, 0.0125, 0.0125], "mlx-lm": [2.0, 0.05, 0.05]}, "gap": 0.0}
    shown = user_cells(UserRow("toy", "bf16", "first"), first, {})
    assert (shown[2], shown[8]) == ("4000 ms / 12.5 ms / 12.5 ms", "0.50 x")


def test_rows_are_chosen_by_patterns() -> None:
    assert {row.id for row in chosen_rows("llama-3-8b/bf16/user-unseen-*")} == {
        "llama-3-8b/bf16/user-unseen-300-700",
        "llama-3-8b/bf16/user-unseen-1500-3500",
    }
    assert all(isinstance(row, UserRow) for row in chosen_rows("*/user-*"))


@pytest.mark.long
def test_rows_from_the_command_line(tmp_path: Path) -> None:
    rows = ("toy/bf16/user-unseen-10-40", "toy/bf16/user-batch-3")
    command = [sys.executable, gpu_peers.__file__, "--toy", f"--only={','.join(rows)}", "--output", str(tmp_path)]
    done = subprocess.run([*command, "--host=reference", "--turns=1"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "benchmarks/gpu-peers.json").read_text(encoding="utf-8"))["rows"]
    assert found.keys() == set(rows)
    assert [len(found[rows[0]]["seconds"][engine]) for engine in ("mlxr", "mlx-lm")] == [5, 5]
    assert "activations" in found[rows[1]]["types"] and found[rows[1]]["path"] == "user"
    shown = subprocess.run([*command, "--report", "--markdown"], capture_output=True, text=True, check=True).stdout
    assert all(f"| {name} | user |" in shown for name in rows)

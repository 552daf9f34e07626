"""The roofline: bytes and FLOPs counted by hand, which bound wins, and what refuses to be predicted."""

import json
from pathlib import Path

import pytest

from mlxr.bench.traffic import cache_bytes, weight_bytes
from mlxr.cli import main
from mlxr.compiler.artifact import Artifact
from mlxr.compiler.artifact.chip import Chip
from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import ArtifactError, RequestError
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.inspect.c_report import call_rows
from mlxr.inspect.roofline import LaunchLimit, StepRoofline, call_works, roofline
from mlxr.inspect.roofline_report import Roofline, roofline_json, roofline_text
from mlxr.inspect.text_table import Ink
from mlxr_tests.family_specs import family_spec
from mlxr_tests.specs import compiled, small_spec

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 48, 88, 6, 2, 40, 61
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM


def chip(bandwidth: float = 1.0, f32: float = 1.0, matmul: float = 1.0, launch: float = 1.0) -> Chip:
    numbers = {"bandwidth_gb_per_s": bandwidth, "f32_tflops": f32, "matmul_tflops": matmul, "launch_us": launch}
    figures = {name: {"value": value, "origin": "predicted"} for name, value in (numbers | {"cache_mib": 1.0}).items()}
    return Chip.model_validate({"name": "toy", "title": "Toy", "figures": figures})


def steps(artifact: Artifact, context: int = 20, batch: int = 1, on: Chip | None = None) -> dict[str, StepRoofline]:
    return {step.name: step for step in roofline(artifact, on or chip(), context, batch)}


def launch(step: StepRoofline, label: str) -> LaunchLimit:
    return next(found for found in step.launches if found.row.kernel.label == label)


@pytest.mark.parametrize(("batch", "suffix"), [(1, ""), (3, "_rows")])
def test_work_of_decode_is_what_the_dims_say(batch: int, suffix: str) -> None:
    step = steps(compiled(small_spec()), context=20, batch=batch)["decode"]
    expected = {
        "embed": (batch * HIDDEN * 2, 0),
        f"qkv{suffix}": (QKV * HIDDEN + HIDDEN + batch * (HIDDEN + QKV), 2 * batch * QKV * HIDDEN),
        "attend": (
            batch * (QKV + HEADS * HEAD_DIM + 20 * 2 * KV_HEADS * HEAD_DIM),
            4 * batch * HEADS * HEAD_DIM * 20,
        ),
        f"down{suffix}": (
            INTERMEDIATE * HIDDEN + batch * (INTERMEDIATE + 2 * HIDDEN),
            2 * batch * INTERMEDIATE * HIDDEN,
        ),
        f"logits{suffix}": (VOCAB * HIDDEN + HIDDEN + batch * (HIDDEN + VOCAB), 2 * batch * VOCAB * HIDDEN),
    }
    for label, (elements, flops) in expected.items():
        work = launch(step, label).work
        assert (work.size_bytes, work.flops) == (4 * elements, flops), label


def test_work_of_prefill_is_what_the_dims_say() -> None:
    step = steps(compiled(small_spec()))["prefill"]
    assert step.tokens == 32
    cache = 4 * 32 * 2 * KV_HEADS * HEAD_DIM
    pairs = 32 * 33 // 2
    attend = launch(step, "attend_prefill").work
    assert attend.flops == 4 * HEADS * HEAD_DIM * pairs
    assert attend.size_bytes == cache + 4 * 32 * (QKV + HEADS * HEAD_DIM)
    assert launch(step, "rope_cache_write").work.size_bytes == cache + 4 * 32 * QKV
    assert launch(step, "logits").work.flops == 2 * VOCAB * HIDDEN, "of the last token alone"


def test_a_window_hides_keys() -> None:
    windowed = steps(compiled(small_spec(model__attention__sliding_window=7)))
    everything = steps(compiled(small_spec()))
    seen, every = (launch(found["decode"], "attend").work for found in (windowed, everything))
    assert (seen.flops, every.flops) == tuple(4 * HEADS * HEAD_DIM * keys for keys in (7, 20))
    assert every.size_bytes - seen.size_bytes == 4 * 13 * 2 * KV_HEADS * HEAD_DIM
    prefill = launch(windowed["prefill"], "attend_prefill").work
    assert prefill.flops == 4 * HEADS * HEAD_DIM * sum(min(i + 1, 7) for i in range(32))


def test_split_attention_writes_and_merges_the_partitions_in_use() -> None:
    step = steps(compiled(small_spec(), Geometry.of(partition=8)), context=20)["decode"]
    partial = 4 * 3 * HEADS * (HEAD_DIM + 4)
    assert launch(step, "attend_partition").work.size_bytes == 4 * (QKV + 20 * 2 * KV_HEADS * HEAD_DIM) + partial
    merge = launch(step, "attend_reduce").work
    assert (merge.size_bytes, merge.flops) == (partial + 4 * HEADS * HEAD_DIM, 0)


def test_of_experts_those_that_are_chosen_count() -> None:
    artifact = compiled(family_spec("experts-shared-gate"))
    experts = next(layer for layer in [artifact.spec.model.layer(i).mlp.experts for i in range(2)] if layer)
    weight = next(w for w in artifact.plan.weights if w.name.endswith("experts.down"))
    rows, columns = weight.shape
    every, of_shared = rows * columns, rows // experts.count * experts.shared.intermediate_size
    # Where MLX has a matmul for it, the shared expert of two sequences has launches of its own.
    apart = compiled(family_spec("experts-shared-gate"), Geometry.of(mlx_min_rows=2))
    for of, batch, label, shared in (
        (artifact, 1, "experts_down_shared", of_shared),
        (artifact, 2, "experts_down_shared_rows", of_shared),
        (apart, 2, "experts_down", 0),
    ):
        work = launch(steps(of, 4, batch)["decode"], label).work
        assert work.flops == 2 * batch * (every * experts.per_token // experts.count + shared)
        chosen = min(every, batch * every * experts.per_token // experts.count)
        assert 0 < work.size_bytes - 4 * (chosen + shared) < 4 * columns * rows // experts.count
    own = launch(steps(apart, 4, 2)["decode"], "down_rows").work
    assert own.flops == 2 * 2 * of_shared


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("family", ["experts-shared-gate", "rope-llama3"])
def test_calls_in_c_do_the_same_work_as_launches_on_gpus(family: str, batch: int) -> None:
    """They are other launches: what GPUs share among several, C does in one, and the other way round."""
    artifact = compile_spec(family_spec(family)).artifact
    calls = call_rows(artifact, artifact.plan.program("cpu"))
    for step in steps(artifact, 4, batch).values():
        work = call_works(artifact, "cpu", [row for row in calls if row.phase == step.name], step.dims)
        assert sum(call.flops for call in work.values()) == step.work.flops
        assert sum(call.size_bytes for call in work.values()) == pytest.approx(step.work.size_bytes, rel=0.1)


def test_weights_and_cache_are_those_that_the_benchmark_counts() -> None:
    artifact = compiled(small_spec(weights={"default": "f16"}, model__hidden_size=64))
    step = steps(artifact, context=30)["decode"]
    weights = weight_bytes(artifact, "metal") + cache_bytes(artifact.plan.arena, 30)
    activations = step.work.size_bytes - weights
    assert 0 < activations < 0.1 * weights


@pytest.mark.parametrize(
    ("on", "bound"),
    [
        (chip(bandwidth=1, f32=1000, launch=1e-3), "memory"),
        (chip(bandwidth=1e6, f32=1e-3, launch=1e-3), "compute"),
        (chip(bandwidth=1e6, f32=1000, launch=50), "launch"),
    ],
)
def test_the_largest_of_three_bounds(on: Chip, bound: str) -> None:
    assert on.figures
    qkv = launch(steps(compiled(small_spec()), on=on)["decode"], "qkv")
    assert qkv.bound == bound
    assert qkv.memory_us == pytest.approx(qkv.work.size_bytes / on.figures.bandwidth_gb_per_s.value / 1e3)
    assert qkv.compute_us == pytest.approx(qkv.work.flops / on.figures.f32_tflops.value / 1e6)
    assert qkv.predicted_us == pytest.approx(max(qkv.memory_us, qkv.compute_us) + on.figures.launch_us.value)


def test_what_mlx_runs_has_the_rate_of_its_matmul() -> None:
    spec = small_spec(weights={"default": "bf16"}, activation_dtype="bf16", model__hidden_size=64)
    step = steps(compiled(spec, Geometry.of(mlx_min_rows=8)), on=chip(f32=1, matmul=100))["prefill"]
    gate_up = launch(step, "gate_up_rows")
    assert gate_up.runs_as == "MLX matmul"
    assert gate_up.compute_us == pytest.approx(gate_up.work.flops / 100 / 1e6)
    attend = launch(step, "attend_prefill")
    assert attend.compute_us == pytest.approx(attend.work.flops / 1e6)


def test_totals_are_sums_and_tokens_are_of_all_sequences() -> None:
    artifact = compiled(small_spec())
    found = Roofline(artifact, chip(), roofline(artifact, chip(), 20, 3))
    data = roofline_json(found)["steps"][0]
    assert data["predicted_us"] == pytest.approx(sum(one["predicted_us"] for one in data["launches"]))
    assert data["bytes"] == sum(one["bytes"] for one in data["launches"])
    assert data["predicted_tokens_per_second"] == pytest.approx(3e6 / data["predicted_us"])
    assert (data["measured_us"], data["share_of_limit"]) == (None, None)


def test_measured_times_are_shown_beside_the_limits() -> None:
    artifact = compiled(small_spec())
    limits = roofline(artifact, chip(), 20, 1)
    times = {(step.name, one.row.launch.kernel): 2 * one.limit_us for step in limits for one in step.launches}
    found = Roofline(artifact, chip(), limits, "metal", "Toy", times)
    data = roofline_json(found)["steps"][0]
    assert data["share_of_limit"] == pytest.approx(0.5)
    assert all(one["share_of_limit"] == pytest.approx(0.5) for one in data["launches"])
    text = roofline_text(found, 200, Ink(False))
    assert "measured on host metal, Toy" in text
    assert ": 50 % of the limit" in text
    assert text.count("50 %") == 2 + sum(
        len([row for row in block.rows if row.runs(step.dims)]) for step in limits for block in step.rows.blocks
    )


@pytest.mark.parametrize("width", [20, 60, 100, 160])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    artifact = compiled(small_spec())
    text = roofline_text(Roofline(artifact, chip(), roofline(artifact, chip(), 20, 1)), width, Ink(False))
    assert max(map(len, text.splitlines())) <= width


def test_what_cannot_be_predicted_is_refused() -> None:
    artifact = compiled(small_spec())
    for context, batch, message in ((0, 1, "--context is 0"), (41, 1, "holds 1 to 40"), (1, 4, "--batch is 4")):
        with pytest.raises(RequestError, match=message):
            roofline(artifact, chip(), context, batch)
    with pytest.raises(ArtifactError, match="it is not known how fast any GPU is"):
        roofline(artifact, find_chip("generic"), 1, 1)
    with pytest.raises(ArtifactError, match="no code for GPUs"):
        roofline(compiled(small_spec(), target="cpu"), chip(), 1, 1)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled(small_spec()).write(tmp_path / "one")
    folder = str(tmp_path / "one")
    assert main(["inspect", folder, "--chip", "m4", "--context", "30", "--batch", "2"]) == 0
    out = capsys.readouterr().out
    assert "Apple M4: 120 GB/s (published)" in out
    assert "decode: 2 sequences of 30 tokens" in out
    assert main(["inspect", folder, "--chip", "h200", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["roofline"]["chip"]["name"] == "h200"
    assert data["roofline"]["steps"][0]["batch"]["context"] == 40, "512, but no more than the artifact holds"
    for options, message in (
        (["--batch", "2"], "--context and --batch are for --chip NAME, --predict or --measure"),
        (["--chip", "m4", "--all-launches"], "leave out --kernel, --graph, --all-launches"),
        (["--chip", "x"], "there is no chip 'x'"),
    ):
        assert main(["inspect", folder, *options]) == 1
        assert message in capsys.readouterr().err

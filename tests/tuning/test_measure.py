"""Timing single launches: real launches on the sim in MLX's place, under a clock that says what each of them cost."""

import json
from itertools import pairwise
from pathlib import Path

import mlx.core as mx
import pytest

from mlxr.cli import main
from mlxr.compiler.artifact import KernelEntry, LibraryCall
from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.errors import HostError, RequestError
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.inspect.roofline import roofline
from mlxr.runtime.hosts.metal.host import MetalHost
from mlxr.runtime.hosts.mlx import launcher
from mlxr.runtime.hosts.mlx.library import call_library
from mlxr.runtime.hosts.mlx_ops.types import Inputs
from mlxr.tuning.measure_launches import measure_launches
from mlxr.tuning.random_inputs import RandomInputs, decode_batch, prefill_batch
from mlxr.tuning.stopwatch import Stopwatch, TimedTask
from mlxr.tuning.timed_launches import TimedLaunches, gpu_host
from mlxr_tests.fake_gpu import FakeGpu
from mlxr_tests.family_specs import family_spec
from mlxr_tests.few import few
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.variants import variant

SPECS = {
    "f32": (small_spec(), Geometry.of(partition=16)),
    "q8_0": (
        small_spec(
            model__hidden_size=64,
            model__mlp={"intermediate_size": 96},
            model__attention={"num_heads": 6, "num_kv_heads": 2, "head_dim": 32},
            weights={"default": "q8_0"},
        ),
        None,
    ),
    "experts": (family_spec("experts-shared-gate"), None),
}


def cost_us(entry: KernelEntry) -> float:
    return 5.0 + sum(map(ord, entry.label)) % 17


def stopwatch(gpu: FakeGpu, **options: float) -> Stopwatch:
    return Stopwatch(gpu.clock, gpu.evaluate, **{"rounds": 3, "longest": 8} | options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", few(SPECS, ["experts"]))
def test_every_launch_of_both_batches_is_timed_and_runs(name: str) -> None:
    spec, geometry = SPECS[name]
    artifact, gpu = compiled(spec, geometry), FakeGpu(cost_us)
    found = measure_launches(artifact, gpu.make_kernels, 1 << 10, 20, 2, stopwatch(gpu, rounds=1))
    limits = roofline(artifact, find_chip("m4"), 20, 2)
    kernels = {(step.name, one.row.launch.kernel): one for step in limits for one in step.launches}
    assert set(found) == set(kernels), "what the roofline predicts is what is measured"
    for key, time in found.items():
        one = kernels[key]
        expected = cost_us(one.row.kernel) if one.runs_as == one.row.launch.kernel else 0.01
        assert time == pytest.approx(expected), one.row.kernel.label


@pytest.mark.long
def test_ops_whose_weights_one_launch_unpacks() -> None:
    """That launch is timed for itself; an op that it is not named for is given numbers in place of its weight."""
    artifact, gpu = variant("for-mlx"), FakeGpu(cost_us)
    found = measure_launches(artifact, gpu.make_kernels, 1 << 10, 20, 2, stopwatch(gpu, rounds=1))
    unpack = artifact.kernel_entry("unpack")
    assert found["prefill", unpack.name] == pytest.approx(cost_us(unpack))
    batch = prefill_batch(artifact, 64)
    timed = TimedLaunches(artifact, gpu.make_kernels(artifact), RandomInputs(artifact, 1 << 10), batch)
    step, graph = artifact.plan.first.phase("prefill"), artifact.graph("prefill")
    for op in ("layers.0.attention.qkv_projected", "layers.0.attention.out", "layers.0.mlp.gated", "layers.0.mlp.out"):
        gpu.launched.clear()
        task = timed.task([one for one in timed.running if one.op == op])
        made = task.run(0, task.x)
        assert made.shape == (64, *next(b.shape[1:] for b in step.buffers if b.name == graph.op(op).out))
        assert gpu.launched == ([unpack.name] if op.endswith("qkv_projected") else [])


def test_norms_of_mlx_ops_are_cast_before_the_clock_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As hosts do once: an op is timed without the cast of its norm's f32 weight."""
    artifact, taken = variant("for-mlx"), []

    def note(call: LibraryCall, inputs: Inputs, *more: None) -> mx.array:
        taken.append((inputs["x"].dtype, inputs["norm"].dtype))
        return call_library(call, inputs, *more)

    monkeypatch.setattr(launcher, "call_library", note)
    gpu, batch = FakeGpu(cost_us), prefill_batch(artifact, 64)
    timed = TimedLaunches(artifact, gpu.make_kernels(artifact), RandomInputs(artifact, 1 << 10), batch)
    launches = [one for one in timed.running if one.op == "layers.0.attention.qkv_projected"]
    norm = artifact.graph("prefill").op(launches[0].op).inputs["norm"]
    assert [str(one.layout.dtype) for one in artifact.plan.weights if one.name == norm] == ["f32"]
    task = timed.task(launches)
    task.run(0, task.x)
    assert taken == [(mx.bfloat16, mx.bfloat16)]


def test_the_median_of_interleaved_chains_is_free_of_what_a_chain_costs() -> None:
    """A disturbance of some chains changes nothing."""
    gpu = FakeGpu(lambda entry: 0.0)
    order: list[str] = []

    def task(name: str, cost: float) -> TimedTask:
        def run(turn: int, x: mx.array) -> mx.array:
            order.append(name)
            gpu.spend(cost + (5000.0 if turn in (40, 90) else 0.0))
            return mx.zeros((8,))

        return TimedTask(mx.ones((2, 3)), run)

    watch = stopwatch(gpu, rounds=5)
    assert watch.times_us([task("a", 3.0), task("b", 40.0)]) == pytest.approx([3.0, 40.0])
    runs = "".join(order[-5 * 2 * 8 :])
    assert runs.count("ab") >= 2 and runs.count("ba") >= 2, "not one after the other"


def test_chains_are_as_long_as_the_clock_needs() -> None:
    gpu = FakeGpu(lambda entry: 0.0)
    lengths: list[int] = []

    def run(turn: int, x: mx.array) -> mx.array:
        lengths.append(turn)
        gpu.spend(10.0)
        return mx.zeros((8,))

    Stopwatch(gpu.clock, gpu.evaluate, rounds=1, chain_us=900, longest=1000).times_us([TimedTask(mx.ones((8,)), run)])
    # 8 tasks cost 100 + 80 us, so 900 us are 40 tasks; before them one to try, and twice 8 to estimate.
    assert len(lengths) == 1 + 16 + 40


def test_weights_are_read_from_more_memory_than_the_cache_holds() -> None:
    artifact, gpu = compiled(small_spec()), FakeGpu(cost_us, compute=False)
    cache = 100_000
    batch = decode_batch(artifact, 1, 20)
    timed = TimedLaunches(artifact, gpu.make_kernels(artifact), RandomInputs(artifact, cache), batch)
    launch = next(one for one in timed.running if artifact.plan.first.kernel(one.kernel).label == "qkv")
    stopwatch(gpu, longest=60).times_us([timed.task([launch])])
    weights = {id(inputs["weight"]): inputs["weight"] for inputs in gpu.inputs}
    assert sum(weight.nbytes for weight in weights.values()) >= 3 * cache
    assert all(first is not second for first, second in zip(gpu.inputs, gpu.inputs[1:], strict=False))
    assert all(a["weight"] is not b["weight"] for a, b in zip(gpu.inputs, gpu.inputs[1:], strict=False))


def test_packed_weights_are_read_from_more_memory_than_the_cache_holds() -> None:
    """And a task that begins with unpacking is chained by its activations, not by a weight that is made anew."""
    artifact, gpu = variant("for-mlx"), FakeGpu(cost_us, compute=False)
    cache, batch = 1 << 20, prefill_batch(artifact, 64)
    timed = TimedLaunches(artifact, gpu.make_kernels(artifact), RandomInputs(artifact, cache), batch)
    task = timed.task([one for one in timed.running if one.op == "layers.0.attention.qkv_projected"])
    assert task.x.shape == (64, artifact.spec.model.hidden_size)
    for turn in range(100):
        task.run(turn, task.x)
    packed = [[x for port, x in inputs.items() if x.dtype == mx.uint8] for inputs in gpu.inputs]
    assert len(packed) == 100 and all(packed)
    for weights in zip(*packed, strict=True):
        assert sum({id(weight): weight.nbytes for weight in weights}.values()) >= 3 * cache
        assert all(a is not b for a, b in pairwise(weights))


def test_a_kernel_that_cannot_run_is_told_and_others_are_timed() -> None:
    artifact, gpu = compiled(small_spec()), FakeGpu(cost_us, compute=False)
    gpu.fails = lambda entry: entry.label == "qkv"
    batch = decode_batch(artifact, 1, 20)
    timed = TimedLaunches(artifact, gpu.make_kernels(artifact), RandomInputs(artifact, 1 << 10), batch)
    by_label = {artifact.plan.first.kernel(one.kernel).label: timed.task([one]) for one in timed.running}
    bad, good = stopwatch(gpu).times_us([by_label["qkv"], by_label["down"]])
    assert isinstance(bad, HostError)
    assert "qkv" in str(bad) and "too many resources" in str(bad)
    assert good == pytest.approx(cost_us(next(k for k in artifact.plan.first.kernels if k.label == "down")))
    with pytest.raises(HostError, match="too many resources"):
        measure_launches(artifact, gpu.make_kernels, 1 << 10, 20, 1, stopwatch(gpu))


def test_batches_have_the_context_that_was_asked_for() -> None:
    artifact = compiled(small_spec())
    batch = decode_batch(artifact, 3, 17)
    assert (batch.num_tokens, batch.context_lens.tolist(), batch.positions.tolist()) == (3, [17] * 3, [16] * 3)
    assert prefill_batch(artifact, 9).context_lens.tolist() == [9]
    for sequences, context in ((4, 17), (1, 41), (1, 0)):
        with pytest.raises(RequestError, match="the artifact holds 3 of 40"):
            decode_batch(artifact, sequences, context)


def test_the_command_measures_on_this_machines_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact, gpu = compiled(small_spec()), FakeGpu(cost_us, compute=False)
    artifact.write(tmp_path / "one")
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda: {"device_name": "Apple M4 Pro"})
    monkeypatch.setattr(MetalHost, "make_kernels", gpu.make_kernels)
    monkeypatch.setattr("mlxr.tuning.stopwatch.Stopwatch", lambda: stopwatch(gpu))
    assert main(["inspect", str(tmp_path / "one"), "--measure", "--trust-artifact", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["roofline"]
    assert (data["host"], data["device"], data["chip"]["name"]) == ("metal", "Apple M4 Pro", "m4-pro")
    for step in data["steps"]:
        total = sum(one["measured_us"] for one in step["launches"])
        assert step["measured_us"] == pytest.approx(total)
        assert step["share_of_limit"] == pytest.approx(step["limit_us"] / total)
    monkeypatch.setattr(mx, "device_info", lambda: {"device_name": "Apple M17"})
    assert main(["inspect", str(tmp_path / "one"), "--measure", "--trust-artifact"]) == 1
    assert "the chip Apple M17 is not known: name one like it with --chip" in capsys.readouterr().err


@pytest.mark.skipif(mx.metal.is_available(), reason="there is a GPU here")
def test_without_a_gpu_measuring_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled(small_spec()).write(tmp_path / "one")
    assert main(["inspect", str(tmp_path / "one"), "--measure", "--trust-artifact"]) == 1
    assert "host cpu launches no kernels on a GPU, so there is nothing to time" in capsys.readouterr().err
    with pytest.raises(HostError, match="Apple silicon"):
        gpu_host("metal", compiled(small_spec()))

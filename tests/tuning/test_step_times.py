"""Whole steps are timed as generation runs them, on the cuda host's own code with the sim in MLX's place."""

import gc
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from mlxr.bench.sequences import Sequences
from mlxr.compiler.errors import HostError
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.runtime.hosts.cuda.device import has_cuda
from mlxr.tuning.step_times import StepTimer
from mlxr_tests.fake_card import SimLauncher, use_card
from mlxr_tests.few import few
from mlxr_tests.specs import compiled, small_spec


@pytest.mark.long
@pytest.mark.skipif(has_cuda(), reason="here the real one runs")
@pytest.mark.parametrize("weights", few(["f32", "q8_0"], ["q8_0"]))
def test_launches_and_step_kernels_take_turns(monkeypatch: pytest.MonkeyPatch, weights: str) -> None:
    attention = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 32}
    sizes = {"model__hidden_size": 64, "model__attention": attention, "model__mlp": {"intermediate_size": 96}}
    spec = small_spec(**sizes, weights={"default": weights})
    artifacts = [compiled(spec, Geometry.of(step_threads=threads)) for threads in (0, 512, 32)]
    launcher = SimLauncher(artifacts[1])  # it has the step kernel, and the launches of the first
    called: list[str] = []
    use_card(monkeypatch, artifacts[0], lambda **options: called.append(options["name"]) or launcher(**options))
    mx.disable_compile()
    try:
        as_launches, as_kernel, too_small = StepTimer("cuda", rounds=2, steps=3).times_us(artifacts, 5)
    finally:
        mx.enable_compile()
    assert isinstance(as_launches, float) and isinstance(as_kernel, float) and min(as_launches, as_kernel) > 0
    assert isinstance(too_small, HostError) and "32" in str(too_small)
    assert sum(name.startswith("step_") for name in called) == 3 + 2 * 3, "a warm-up and two turns"


@pytest.mark.long
@pytest.mark.skipif(has_cuda(), reason="here the real one runs")
def test_memory_for_one_call_is_memory_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = compiled(small_spec())
    needed = sum(one.layout.size_bytes for one in artifact.plan.weights) + artifact.plan.arena.size_bytes
    use_card(monkeypatch, artifact, SimLauncher(artifact))
    gc.collect()
    memory = mx.get_active_memory() + needed * 3 // 2
    monkeypatch.setattr("mlxr.tuning.step_times.device_memory_bytes", lambda: memory)
    mx.disable_compile()
    try:
        times = [StepTimer("cuda", rounds=1, steps=2).times_us([artifact], 5) for _ in range(2)]
    finally:
        mx.enable_compile()
    assert all(isinstance(time, float) for (time,) in times), times


@pytest.mark.skipif(has_cuda(), reason="here the real one runs")
@pytest.mark.parametrize("host", few(["cuda", "sim"], ["cuda"]))
def test_contiguous_and_paged_arenas_take_turns(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    spec = small_spec(cache={"block_size": 4, "max_sequences": 1})
    artifacts = [compiled(spec, Geometry.of(contiguous_context=context)) for context in (0, 40, 0)]
    assert [artifact.plan.arena.mode for artifact in artifacts] == ["paged", "contiguous", "paged"]
    texts = {kernel.name: one for one in artifacts for kernel in one.plan.first.kernels}
    any_of_them: Any = SimpleNamespace(
        kernel_text=lambda name, *target: texts[name].kernel_text(name, *target),
        kernel_sections=lambda name, *target: texts[name].kernel_sections(name, *target),
    )
    if host == "cuda":
        use_card(monkeypatch, any_of_them, SimLauncher(any_of_them))
    mx.disable_compile()
    try:
        timer = StepTimer(host, rounds=1, steps=2)
        times = timer.times_us(artifacts, 5) + timer.prompt_times_us(artifacts, 5)
    finally:
        mx.enable_compile()
    assert all(isinstance(time, float) and time > 0 for time in times)


def test_weights_that_do_not_fit_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> mx.array:
        raise RuntimeError("[malloc] out of memory")

    monkeypatch.setattr(mx.random, "normal", full)
    found = StepTimer("sim").times_us([compiled(small_spec())] * 2, 5)
    assert [str(one) for one in found] == ["no memory for whole steps: [malloc] out of memory"] * 2


def test_what_exceeds_the_memory_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = compiled(small_spec())
    weights, arena = sum(one.layout.size_bytes for one in artifact.plan.weights), artifact.plan.arena.size_bytes
    monkeypatch.setattr("mlxr.tuning.step_times.device_memory_bytes", lambda: mx.get_active_memory() + weights)
    found = StepTimer("sim").times_us([artifact] * 2, 5)
    assert [str(one).split(" in use")[0] for one in found] == [
        f"no memory for whole steps: {weights} bytes of weights, {arena} of arenas and {mx.get_active_memory()}"
    ] * 2


@pytest.mark.parametrize(("fails", "turns"), few([(1, 0), (3, 1), (5, 2)], [(5, 2)]))
def test_a_host_that_fails_on_the_way_is_told(monkeypatch: pytest.MonkeyPatch, fails: int, turns: int) -> None:
    """In its first steps or in a later turn; the other artifact is timed."""
    spec, decode, calls = small_spec(), Sequences.decode, list[int]()

    def failing(sequences: Sequences, steps: int) -> list[float]:
        calls.append(steps)
        if len(calls) == fails:
            raise RuntimeError("[malloc] out of memory")
        return decode(sequences, steps)

    monkeypatch.setattr(Sequences, "decode", failing)
    first, second = StepTimer("reference", rounds=2, steps=2).times_us([compiled(spec)] * 2, 5)
    assert isinstance(first, HostError) and str(first) == "[malloc] out of memory"
    assert isinstance(second, float)
    assert len(calls) == 2 + turns + 2, "each once before the clock starts; then turns of both, two of the second"

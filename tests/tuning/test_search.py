"""`mlxr tune`: with a GPU whose costs are known, the winners are known too, and what is written says so."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxr.cli import main
from mlxr.compiler.artifact import Artifact, KernelEntry, load_artifact
from mlxr.compiler.artifact.geometry_rule import GeometryRule
from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import HostError, RequestError
from mlxr.compiler.spec.model import ModelSpec
from mlxr.runtime.hosts.metal.host import MetalHost
from mlxr.tuning.candidates import CANDIDATES, Candidates
from mlxr.tuning.search import Tuner, Tuning
from mlxr.tuning.site_tuning import SiteTuning, tuning_text
from mlxr.tuning.step_times import StepTimer
from mlxr.tuning.stopwatch import Stopwatch
from mlxr_tests.fake_gpu import FakeGpu
from mlxr_tests.few import few
from mlxr_tests.specs import UNPACKED, small_spec

SPEC = small_spec(model__num_layers=1)
WANTED = {
    "qkv": {"matvec_outputs": 2, "matvec_simdgroups": 8},
    "down": {"matvec_outputs": 8},
    "attend": {"attend_simdgroups": 4},
    "o_rows": {"matmul_tile": 4},
    "attend_prefill": {"prefill_rows": 16},
}
THREADS = {"step_threads": CANDIDATES.values["step_threads"]}
FEW = replace(
    CANDIDATES,
    values=THREADS
    | {
        "matvec_outputs": (2, 8),
        "matvec_simdgroups": (2, 8),
        "attend_simdgroups": (4,),
        "matmul_tile": (4,),
        "prefill_rows": (16,),
    },
    threshold_rows=(2, 3, 4, 16, 32),
)
"""Few of those that are tried elsewhere: each is a compilation."""


def cost_us(entry: KernelEntry) -> float:
    """20 us more for each wanted size that a kernel does not have."""
    sizes = entry.chosen.sizes if entry.chosen else {}
    wrong = sum(sizes[name] != value for name, value in WANTED.get(entry.label, {}).items())
    return 20.0 * (1 + wrong)


def tuned(
    gpu: FakeGpu,
    spec: ModelSpec,
    *,
    steps: StepTimer | None = None,
    told: list[str] | None = None,
    candidates: Candidates = FEW,
    **rule: Any,
) -> Tuning:
    """What is found for 20 tokens, on a chip of no rules or of this one."""
    chip = find_chip("generic")
    if rule:
        one = GeometryRule(because="so that there is something to choose", origin="predicted", **rule)
        chip = chip.model_copy(update={"geometry": (one,)})
    artifact = compile_spec(spec, targets=("metal",), chip=chip).artifact
    watch = Stopwatch(gpu.clock, gpu.evaluate, rounds=1, longest=8)
    tell = (told if told is not None else []).append
    tuner = Tuner(artifact, chip, gpu.make_kernels, watch, "Toy", tell, steps, step_kernels=True, candidates=candidates)
    return tuner.tune(20)


def of(tuning: Tuning, label: str, scenario: str) -> SiteTuning:
    return next(one for one in tuning.sites if one.site.startswith(f"{label} ") and scenario in one.scenario)


@pytest.fixture(scope="module")
def tuning() -> Tuning:
    return tuned(FakeGpu(cost_us, compute=False), SPEC)


def test_the_fastest_sizes_win(tuning: Tuning) -> None:
    assert of(tuning, "qkv", "1 sequence").changed == WANTED["qkv"]
    assert of(tuning, "down", "1 sequence").changed == WANTED["down"]
    assert of(tuning, "attend", "1 sequence").changed == WANTED["attend"]
    assert of(tuning, "o", "3 sequences").changed == WANTED["o_rows"]
    assert of(tuning, "attend_prefill", "prompt").changed == WANTED["attend_prefill"]


@pytest.mark.long
def test_kernels_of_all_candidates_are_built_before_one_is_timed() -> None:
    """Side by side: building one takes longer than timing it."""
    gpu, artifact = FakeGpu(cost_us, compute=False), compile_spec(SPEC, targets=("metal",)).artifact
    built: list[tuple[str, int]] = []
    told = [""]

    def make(one: Artifact) -> Mapping[str, Callable[..., list[mx.array]]]:
        built.append((told[-1], len(gpu.launched)))
        return gpu.make_kernels(one)

    watch = Stopwatch(gpu.clock, gpu.evaluate, rounds=1, longest=8)
    Tuner(artifact, find_chip("generic"), make, watch, "Toy", told.append, candidates=FEW).tune(20)
    launched = [count for text, count in built if text.endswith("pass 1: matvec_outputs")]
    assert len(launched) == 5 and len(set(launched)) == 1, "the present one, both candidates ahead, and both in turn"


def test_what_is_not_slower_stays(tuning: Tuning) -> None:
    assert of(tuning, "o", "1 sequence").changed == {}
    assert of(tuning, "gate_up", "1 sequence").changed == {}
    assert of(tuning, "qkv", "3 sequences").changed == {}


def test_the_artifact_has_the_winners_and_their_reasons(tuning: Tuning) -> None:
    chosen = {kernel.label: kernel.chosen for kernel in tuning.artifact.plan.first.kernels if kernel.chosen}
    for label, sizes in WANTED.items():
        found = chosen[label]
        assert {name: found.sizes[name] for name in sizes} == sizes
        assert all("us with" in found.why[name] and "on Toy (measured)" in found.why[name] for name in sizes)
    assert "20.00 us instead of 60.00 us with 1 sequence of 20 tokens" in chosen["qkv"].why["matvec_outputs"]
    assert tuning.artifact.chip.geometry, "so that a changed spec is compiled with them too"


def test_all_candidates_and_their_times_are_kept(tuning: Tuning) -> None:
    rounds = of(tuning, "qkv", "1 sequence").rounds
    assert [trial.time_us for trial in rounds[0]] == pytest.approx([60.0, 40.0, 60.0])
    assert {trial.sizes["matvec_outputs"] for trial in rounds[0]} == {2, 4, 8}
    assert rounds[0][0].sizes == of(tuning, "qkv", "1 sequence").before, "what was best so far is timed with the others"


@pytest.mark.long
def test_a_busy_machine_changes_nothing() -> None:
    """All kernels cost the same here, and other programs up to five times as much again."""

    class Busy(FakeGpu):
        rng = np.random.default_rng(3)

        def evaluate(self, array: mx.array) -> None:
            self.spend(self._pending_us * float(self.rng.uniform(0, 5)))
            super().evaluate(array)

    artifact, told = compile_spec(SPEC, targets=("metal",)).artifact, list[str]()
    gpu = Busy(lambda entry: 20.0, compute=False)
    watch = Stopwatch(gpu.clock, gpu.evaluate, rounds=7, longest=8)
    found = Tuner(artifact, find_chip("generic"), gpu.make_kernels, watch, "Toy", told.append, candidates=FEW).tune(20)
    assert not [one.site for one in found.sites if one.changed]
    forgotten = [text for text in told if "not clearly faster" in text]
    assert len(forgotten) > 3, "by their first times alone these would have been chosen"


@pytest.mark.long
def test_a_candidate_that_cannot_run_loses() -> None:
    def fails(entry: KernelEntry) -> bool:
        return entry.label == "down" and entry.chosen is not None and entry.chosen.sizes["matvec_outputs"] == 8

    gpu = FakeGpu(cost_us, compute=False)
    gpu.fails = fails
    one = of(tuned(gpu, SPEC), "down", "1 sequence")
    assert one.changed == {}
    failed = [trial for trials in one.rounds for trial in trials if trial.time_us is None]
    assert failed
    assert all(trial.sizes["matvec_outputs"] == 8 and "too many resources" in str(trial.error) for trial in failed)


def test_an_artifact_that_fails_as_it_is_is_an_error() -> None:
    gpu = FakeGpu(cost_us, compute=False)
    gpu.fails = lambda entry: entry.label == "down"
    with pytest.raises(HostError, match=r"down 48x88 f32 cannot run with .*too many resources"):
        tuned(gpu, SPEC)


@pytest.mark.parametrize(("gemm_us", "expected"), few([(2000.0, 33), (35.0, 4), (5.0, 2)], [(35.0, 4)]))
def test_a_threshold_is_where_the_other_side_wins(gemm_us: float, expected: int) -> None:
    """The kernel for several rows costs 10 us a row here, the one for many the same for any number."""

    class Counting(FakeGpu):
        def make_kernels(self, artifact):  # type: ignore[no-untyped-def]
            made = super().make_kernels(artifact)

            def costing(kernel: KernelEntry):  # type: ignore[no-untyped-def]
                def launch(**options):  # type: ignore[no-untyped-def]
                    rows = options["output_shapes"][0][0]
                    self.spend(gemm_us if kernel.label.endswith("_gemm") else 10.0 * rows)
                    return made[kernel.name](**options)

                return launch

            return {kernel.name: costing(kernel) for kernel in artifact.plan.first.kernels}

    spec = small_spec(
        model__num_layers=1,
        model__hidden_size=64,
        model__mlp={"intermediate_size": 96},
        model__attention={"num_heads": 6, "num_kv_heads": 2, "head_dim": 32},
        weights={"default": "q8_0"},
    )
    found = tuned(Counting(lambda entry: 0.0, compute=False), spec)
    one = of(found, "gate_up", "2 rows and more")
    assert one.before == {"gemm_min_rows": 17}
    assert one.best == {"gemm_min_rows": expected}
    plan = found.artifact.plan
    conditions = {
        plan.first.kernel(launch.kernel).label: str(launch.when)
        for launch in plan.first.phase("prefill").launches
        if launch.op == "layers.0.mlp.gated" and not launch.needs_library
    }
    if expected == 4:
        assert conditions == {"gate_up_rows": "tokens <= 3", "gate_up_gemm": "tokens >= 4"}
    assert ("gate_up_gemm" in conditions) is (expected < 33), "no step has 33 tokens"


class Blocks32(StepTimer):
    """Steps that are faster with blocks of 32 tokens, and prompts that are not."""

    def times_us(self, artifacts: Sequence[Artifact], context: int) -> list[float | HostError]:
        return [90.0 if artifact.plan.arena.block_size == 32 else 100.0 for artifact in artifacts]

    def prompt_times_us(self, artifacts: Sequence[Artifact], tokens: int) -> list[float | HostError]:
        return [100.0] * len(artifacts)


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu = FakeGpu(cost_us, compute=False)
    start = compile_spec(SPEC).artifact
    start.write(tmp_path / "one")
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda: {"device_name": "Apple M4 Pro"})
    monkeypatch.setattr(MetalHost, "make_kernels", gpu.make_kernels)
    monkeypatch.setattr(
        "mlxr.tuning.stopwatch.Stopwatch", lambda: Stopwatch(gpu.clock, gpu.evaluate, rounds=1, longest=8)
    )
    monkeypatch.setattr("mlxr.tuning.candidates.CANDIDATES", FEW)
    monkeypatch.setattr("mlxr.tuning.step_times.StepTimer", Blocks32)
    assert main(["tune", str(tmp_path / "one"), "-o", str(tmp_path / "two"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    found = load_artifact(tmp_path / "two")
    assert json.loads(found.files["tuning.json"]) == data
    assert (data["artifact"], data["chip"], data["device"], data["host"]) == (
        *(start.digest, "m4-pro", "Apple M4 Pro", "metal"),
    )
    assert found.chip.name == "m4-pro"
    assert found.plan.targets == start.plan.targets
    assert {program.arena.block_size for program in found.plan.programs.values()} == {32}
    qkv = next(kernel for kernel in found.plan.first.kernels if kernel.label == "qkv")
    assert qkv.chosen
    assert {name: qkv.chosen.sizes[name] for name in WANTED["qkv"]} == WANTED["qkv"]
    assert main(["inspect", str(tmp_path / "two")]) == 0
    shown = capsys.readouterr().out
    assert "geometry m4-pro chosen for Apple M4 Pro" in " ".join(shown.split())
    assert "matvec_simdgroups 8" in shown
    assert main(["tune", str(tmp_path / "two"), "-o", str(tmp_path / "three")]) == 0
    out = capsys.readouterr().out
    assert "stays as it is" in out and "->" not in out, "what is tuned stays"


@pytest.mark.skipif(mx.metal.is_available(), reason="there is a GPU here")
def test_without_a_gpu_tuning_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "storyteller", "-o", str(tmp_path / "two")]) == 1
    assert "there is nothing to time" in capsys.readouterr().err
    assert not (tmp_path / "two").exists()


def mma_us(entry: KernelEntry) -> float:
    """20 us; with MMA 10, and with four steps at once 5."""
    sizes = entry.chosen.sizes if entry.chosen else {}
    if not any(size for name, size in sizes.items() if name.endswith("_mma")):
        return 20.0
    return 5.0 if sizes.get("matvec_unroll") == 4 else 10.0


OF_16_BITS = UNPACKED | {"cache__max_sequences": 1, "model__attention__head_dim": 64, "model__num_layers": 3}
ONE_LAYER = small_spec(**OF_16_BITS | {"model__num_layers": 1, "weights": {"default": "q4_k"}})
VARIANTS = ("matvec_mma", "attend_mma", "partition_mma", "prefill_mma")


@pytest.mark.long
def test_variants_are_tried_with_sizes_of_their_own() -> None:
    """Only on chips whose table allows them; MMA kernels need at least 16 rows of the weight."""
    few_values = replace(FEW, values=THREADS | {"matvec_unroll": (1, 4), "attend_heads": (2,)})
    gpu = FakeGpu(mma_us, compute=False)
    found = tuned(gpu, ONE_LAYER, candidates=few_values, sizes=dict.fromkeys(VARIANTS, 1), labels=("no such",))
    one = of(found, "down", "1 sequence")
    sizes = {"matvec_mma": 1, "matvec_outputs": 16, "matvec_simdgroups": 8, "matvec_split": 8, "matvec_unroll": 4}
    assert one.changed == sizes
    one = of(found, "attend", "1 sequence")
    assert one.changed == {"attend_mma": 1} and "attend_heads" not in one.best, "heads mean nothing to it"
    assert of(found, "attend_prefill", "a prompt").changed == {"prefill_mma": 1, "prefill_rows": 64}
    labels = {kernel.label for kernel in found.artifact.plan.first.kernels}
    assert {"attend_mma", "attend_prefill_mma"} <= labels
    down = next(kernel.name for kernel in found.artifact.plan.first.kernels if kernel.label == "down")
    assert "mma_f16(" in found.artifact.kernel_text(down)
    plain = tuned(FakeGpu(mma_us, compute=False), ONE_LAYER, candidates=few_values)
    tried = [trial.sizes for one in plain.sites for trials in one.rounds for trial in trials]
    assert tried and not any(sizes.get(name) for sizes in tried for name in VARIANTS)


@pytest.mark.long
def test_variants_are_left_again() -> None:
    """And then sizes are tried that mean nothing to matrix instructions."""

    def cost_us(entry: KernelEntry) -> float:
        return 5.0 if entry.chosen and entry.chosen.sizes.get("attend_heads") == 2 else 30.0 - mma_us(entry)

    sizes = {"matvec_mma": 1, "matvec_outputs": 16, "attend_mma": 1, "prefill_mma": 1, "prefill_rows": 64}
    few_values = replace(FEW, values=THREADS | {"attend_heads": (2,)})
    found = tuned(FakeGpu(cost_us, compute=False), ONE_LAYER, candidates=few_values, sizes=sizes)
    assert of(found, "down", "1 sequence").changed["matvec_mma"] == 0
    assert of(found, "attend", "1 sequence").changed == {"attend_mma": 0, "attend_heads": 2}
    assert of(found, "attend_prefill", "a prompt").changed == {"prefill_mma": 0, "prefill_rows": 32}
    assert not any("_mma" in kernel.label for kernel in found.artifact.plan.first.kernels)


def test_what_matrix_instructions_cannot_take_is_not_tried() -> None:
    told: list[str] = []
    none, sizes = replace(FEW, values=THREADS), dict.fromkeys(VARIANTS, 1)
    found = tuned(FakeGpu(mma_us), SPEC, told=told, candidates=none, sizes=sizes, labels=("no such",))
    assert not [text for text in told if "is left out" in text or "_mma" in text]
    assert not [one for one in found.sites if one.changed]


@pytest.mark.long
@pytest.mark.parametrize("start", few([17, 33], [17]))
@pytest.mark.parametrize(("unpack_us", "expected"), few([(100.0, 3), (1e6, 33), (1.0, 2)], [(100.0, 3)]))
def test_a_threshold_of_quantised_weights_is_one_for_all(start: int, unpack_us: float, expected: int) -> None:
    """Four projections of a layer cost 10 us a row each, or one launch unpacks for all; layers are of two kinds."""
    unpacked: set[str] = set()

    class Counting(FakeGpu):
        def make_kernels(self, artifact: Artifact) -> Mapping[str, Callable[..., list[mx.array]]]:
            made = super().make_kernels(artifact)

            def costing(kernel: KernelEntry) -> Callable[..., list[mx.array]]:
                def launch(**options: Any) -> list[mx.array]:
                    self.spend(unpack_us if kernel.label == "unpack" else 10.0 * options["output_shapes"][0][0])
                    unpacked.update([kernel.name] if kernel.label == "unpack" else [])
                    return made[kernel.name](**options)

                return launch

            return {kernel.name: costing(kernel) for kernel in artifact.plan.first.kernels}

    gpu = Counting(lambda entry: 0.0, compute=False)
    found = tuned(gpu, small_spec(**OF_16_BITS), sizes={"mlx_quantised_min_rows": start})
    (one,) = (one for one in found.sites if "mlx_quantised_min_rows" in one.best)
    assert (one.site, one.best) == ("all quantised weights", {"mlx_quantised_min_rows": expected})
    below, above = one.rounds[0]
    assert (below.time_us, above.time_us) == pytest.approx((2 * 4 * 10 * 2, 2 * unpack_us), abs=0.1)
    assert len(unpacked) == 2
    minima = {
        launch.when.minimum
        for launch in found.artifact.plan.first.phase("prefill").launches
        if launch.needs_library and launch.when is not None
    }
    assert minima == {expected}


class Arenas(StepTimer):
    """Steps whose times are known: of an arena of this mode 90 us, of others 100; or none at all."""

    def __init__(self, fast: str) -> None:
        super().__init__("cuda")
        self.fast = fast

    def times_us(self, artifacts: Sequence[Artifact], context: int) -> list[float | HostError]:
        if not self.fast:
            return [HostError("no memory")] * len(artifacts)
        return [90.0 if artifact.plan.arena.mode == self.fast else 100.0 for artifact in artifacts]

    def prompt_times_us(self, artifacts: Sequence[Artifact], tokens: int) -> list[float | HostError]:
        """All the same."""
        return [100.0] * len(artifacts)


ONE_SEQUENCE = {"max_sequences": 1, "block_size": 4}


@pytest.mark.parametrize("start", few([0, 4096], [4096]))
@pytest.mark.parametrize(("fast", "other"), few([("paged", 0), ("contiguous", 40)], [("paged", 0)]))
def test_the_arena_is_what_is_faster(start: int, fast: str, other: int) -> None:
    spec = small_spec(model__num_layers=1, cache=ONE_SEQUENCE)
    gpu = FakeGpu(lambda entry: 1.0, compute=False)
    found = tuned(gpu, spec, steps=Arenas(fast), sizes={"contiguous_context": start})
    one = of(found, "arena", "whole steps")
    changes = (fast == "paged") == bool(start)
    assert one.changed == ({"contiguous_context": other} if changes else {})
    assert found.artifact.plan.arena.mode == fast
    assert len(one.rounds) == 1 + changes, "the winner is timed again"


@pytest.mark.long
def test_what_is_faster_once_is_forgotten() -> None:
    class Once(Arenas):
        def times_us(self, artifacts: Sequence[Artifact], context: int) -> list[float | HostError]:
            found = super().times_us(artifacts, context)
            self.fast = "contiguous"
            return found

    spec = small_spec(model__num_layers=1, cache=ONE_SEQUENCE)
    one = of(tuned(FakeGpu(lambda entry: 1.0, compute=False), spec, steps=Once("paged")), "arena", "whole steps")
    assert len(one.rounds) == 2 and not one.changed and not one.because


@pytest.mark.long
def test_an_arena_that_is_said_or_cannot_be_timed_stays() -> None:
    gpu = FakeGpu(lambda entry: 1.0, compute=False)
    said = small_spec(model__num_layers=1, cache=ONE_SEQUENCE | {"mode": "contiguous"})
    assert not any(one.site.startswith("arena ") for one in tuned(gpu, said, steps=Arenas("paged")).sites)
    found = tuned(gpu, small_spec(model__num_layers=1, cache=ONE_SEQUENCE), steps=Arenas(""))
    assert found.artifact.plan.arena.mode == "contiguous"
    (text,) = (line for line in tuning_text(found.sites).splitlines() if line.startswith("arena "))
    assert text.endswith(" tokens: stays as it is, since it cannot be timed: no memory")


class Steps(StepTimer):
    """Steps whose times are known: launches 900 us, one kernel 700 of 512 threads and more of others, none of 1024."""

    def times_us(self, artifacts: Sequence[Artifact], context: int) -> list[float | HostError]:
        found: list[float | HostError] = []
        for artifact in artifacts:
            chosen = artifact.plan.first.phase("decode").chosen
            assert chosen is not None
            threads = chosen.sizes["step_threads"]
            known = {0: 900.0, 1024: HostError("it does not fit")}
            found.append(known.get(threads, 700.0 + abs(threads - 512)))
        return found

    def prompt_times_us(self, artifacts: Sequence[Artifact], tokens: int) -> list[float | HostError]:
        """All the same."""
        return [100.0] * len(artifacts)


def test_a_step_becomes_one_kernel_where_that_is_faster() -> None:
    gpu = FakeGpu(lambda entry: 1.0, compute=False)
    found = tuned(gpu, SPEC, steps=Steps("cuda"))
    one = of(found, "step", "whole steps of 1 sequence")
    assert one.changed == {"step_threads": 512}
    # The sequence must have room for 32 steps in a context of 40.
    assert one.because == "700.00 us instead of 900.00 us with whole steps of 1 sequence of 8 tokens on Toy"
    chosen = found.artifact.plan.first.phase("decode").chosen
    assert chosen is not None and chosen.sizes["step_threads"] == 512


def test_a_step_that_cannot_run_as_it_is_becomes_the_best_of_others() -> None:
    gpu = FakeGpu(lambda entry: 1.0, compute=False)
    found = tuned(gpu, SPEC, steps=Steps("cuda"), sizes={"step_threads": 1024}, labels=("step",))
    one = of(found, "step", "whole steps of 1 sequence")
    assert one.changed == {"step_threads": 512}
    reason = "700.00 us with whole steps of 1 sequence of 8 tokens on Toy; the form before: it does not fit"
    assert one.because == reason
    assert [trial.error for trial in one.rounds[-1]] == ["it does not fit", None], "timed again"


def test_too_long_a_context_is_refused_before_anything_is_timed() -> None:
    class Untouched(StepTimer):
        def times_us(self, artifacts: Sequence[Artifact], context: int) -> list[float | HostError]:
            raise AssertionError("timed")

    gpu, spec = FakeGpu(lambda entry: 1.0, compute=False), small_spec(model__num_layers=1, cache=ONE_SEQUENCE)
    artifact, chip = compile_spec(spec, targets=("metal",)).artifact, find_chip("generic")
    tuner = Tuner(artifact, chip, gpu.make_kernels, Stopwatch(gpu.clock, gpu.evaluate), "Toy", print, Untouched("cuda"))
    with pytest.raises(RequestError, match="1 sequence of 41 tokens: the artifact holds 1 of 40"):
        tuner.tune(41)
    assert not gpu.launched


@pytest.mark.long
def test_what_one_site_cannot_have_others_may() -> None:
    """Sizes are tried of all sites at once, and of each alone where one of them cannot have its own."""
    gpu = FakeGpu(cost_us, compute=False)
    make = gpu.make_kernels

    def refuse(artifact: Artifact) -> Mapping[str, Callable[..., list[mx.array]]]:
        for kernel in artifact.plan.first.kernels:
            if kernel.label == "down" and kernel.chosen and kernel.chosen.sizes["matvec_outputs"] == 2:
                raise HostError("no such kernel")
        return make(artifact)

    gpu.make_kernels = refuse  # type: ignore[method-assign]
    found = tuned(gpu, SPEC)
    assert of(found, "qkv", "1 sequence").changed == WANTED["qkv"]
    assert of(found, "down", "1 sequence").changed == WANTED["down"]

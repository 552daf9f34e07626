"""What a user gets by the shortest command: each host computes in the types that suit it, by the kernels for these."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

import mlxr
from mlxr.cli import main
from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.spec.change import Changes
from mlxr.loading.resolve import resolve_artifact
from mlxr.runtime.engine.launch_step import launch_step
from mlxr.runtime.hosts.batch import BatchRequest
from mlxr.runtime.hosts.cuda import device
from mlxr_tests.fake_card import Sums, use_card
from mlxr_tests.few import few


@pytest.fixture(autouse=True)
def _compiled_as_for_users() -> None:
    """Not as for users, unlike elsewhere in this folder, where it is short: what is seen is which types are used."""


DATA = Path(__file__).parents[1] / "data"
BF16, Q4_K, F16 = DATA / "storyteller", DATA / "golden/tiny-Q4_K_M.gguf", DATA / "golden/tiny-F16.gguf"
no_gpu = pytest.mark.skipif(device.has_cuda() or mx.metal.is_available(), reason="here the real one runs")
PROMPT = [1, *range(5, 70)]


def on_card(monkeypatch: pytest.MonkeyPatch, model: Path, **options: Any) -> mlxr.Model:
    """Loaded by default options on a machine with an H200, which computes nothing sensible."""
    artifact, _ = resolve_artifact(str(model), options.get("changes", Changes()), find_chip("h200"))
    use_card(monkeypatch, artifact, Sums())
    monkeypatch.setattr(device, "chip_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    return mlxr.load(model, **options)


def launched(model: mlxr.Model) -> set[str]:
    """Labels of the kernels, and kinds of the MLX ops, that a prompt and a decode step launch."""
    seq_id = model.pager.add_sequence()
    for start, tokens in ((0, PROMPT), (len(PROMPT), [7])):
        model.host.read(launch_step(model.host, model.pager, [BatchRequest(seq_id, tokens, start)]))
    labels = {kernel.name: kernel.label for kernel in model.artifact.plan.first.kernels}
    return {labels.get(name, name) for name in model.host.launches}


@no_gpu
@pytest.mark.parametrize(
    ("model", "half"), few([(BF16, "bf16"), (Q4_K, "bf16"), (F16, "f16")], [(Q4_K, "bf16")]), ids=lambda v: str(v)[-9:]
)
def test_cuda_takes_the_16_bit_path(monkeypatch: pytest.MonkeyPatch, model: Path, half: str) -> None:
    loaded = on_card(monkeypatch, model)
    assert (loaded.host.name, str(loaded.types.activations), str(loaded.types.cache)) == ("cuda", half, half)
    assert loaded.arena.stores["k_arena"].dtype == {"bf16": mx.bfloat16, "f16": mx.float16}[half]
    assert loaded.artifact.plan.max_tokens >= 512 and loaded.artifact.plan.padded_sizes
    found = launched(loaded)
    assert "mlx.projection" in found, "MLX multiplies 16-bit matrices alone: f32 activations would not reach it"
    ports = {port.dtype for kernel in loaded.artifact.plan.first.kernels for port in kernel.inputs if port.name == "x"}
    assert {str(dtype) for dtype in ports} == {half}


@no_gpu
def test_cuda_computes_in_f32_where_the_user_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = Changes(activation_dtype="f32", cache_dtype="q8")
    loaded = on_card(monkeypatch, Q4_K, changes=changes)
    assert (str(loaded.types.activations), str(loaded.types.cache)) == ("f32", "q8")
    assert "mlx.projection" not in launched(loaded)


@pytest.mark.parametrize(
    ("chip", "model", "half"),
    [("m1", Q4_K, "f16"), ("m2-max", Q4_K, "f16"), ("m3", Q4_K, "bf16"), ("m1", BF16, "bf16"), ("m4", F16, "f16")],
)
def test_metal_takes_the_16_bits_of_its_chip(chip: str, model: Path, half: str) -> None:
    artifact, _ = resolve_artifact(str(model), chip=find_chip(chip))
    types = artifact.plan.programs["metal"].types
    assert (str(types.activations), str(types.cache)) == (half, half)


CACHES = [([], "f16 (half of f32's bytes)"), (["--kv", "q8"], "q8 (the spec says so)")]


@pytest.mark.parametrize(("options", "cache"), few(CACHES, CACHES[:1]))
def test_cpu_computes_in_f32_and_caches_half(
    capsys: pytest.CaptureFixture[str], options: list[str], cache: str
) -> None:
    arguments = ["run", str(Q4_K), "--host", "cpu", "--prompt", "tok5", "--max-tokens", "3", "--stats", *options]
    assert main(arguments) == 0
    assert f"activations f32 (a CPU is no slower with it), cache {cache}" in capsys.readouterr().err


def test_types_that_a_host_does_not_compute_in_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(Q4_K), "--host", "cpu", "--prompt", "x", "--activations", "bf16"]) == 1
    assert "activations are bf16, but host cpu computes with f32 ones" in capsys.readouterr().err


def test_inspect_says_the_types_of_each_target_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(BF16)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "metal activations bf16 (the weights or their scales are bf16)" in told
    assert "cpu activations f32 (a CPU is no slower with it), cache f16" in told

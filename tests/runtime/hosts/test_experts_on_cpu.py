"""Some layers' experts on the CPU, beside a card: on sim, and on a fake card, each with host cpu's own program."""

import time
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import mlxr
from mlxr.compiler.artifact import Artifact
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.cuda import device
from mlxr.runtime.hosts.cuda.handover.card_handover import kernel_text, with_names
from mlxr.runtime.hosts.cuda.nvrtc import compile_cubin
from mlxr.runtime.hosts.handover import Handover, HandoverLayout
from mlxr_tests.card_and_cpu import file_with_experts, spec_with_experts, use_card_and_cpu
from mlxr_tests.has_nvrtc import has_nvrtc

_IDS = [5, 17, 3, 44, 9, 28, 1, 60, 33, 12, 7]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of weights."""
    return file_with_experts(tmp_path_factory.mktemp("experts"))


@pytest.fixture
def eager() -> Iterator[None]:
    """`mx.compile` does nothing."""
    mx.disable_compile()
    yield
    mx.enable_compile()


def _artifact(layers_on_cpu: int) -> Artifact:
    return compile_spec(spec_with_experts(layers_on_cpu), targets=("metal",)).artifact


def _calls(counts: dict[str, int], kernel: str) -> int:
    return sum(times for name, times in counts.items() if name.startswith(kernel))


def test_a_cut_plan_computes_what_the_whole_one_does(weights: Path) -> None:
    logits, answers = [], []
    for layers in (0, 2):
        with mlxr.load(_artifact(layers), weights, host="sim") as model:
            logits.append(model.logits(_IDS))
            answers.append([a.token_ids for a in model.start([_IDS, _IDS[:3]], max_tokens=5).finish()])
            if layers:
                card, experts = model.host.launches, model.experts
                assert experts is not None
                steps = card["embed_" + next(n for n in card if n.startswith("embed_")).removeprefix("embed_")]
                given, computed = _calls(card, "give_routed"), _calls(experts.launches, "experts_gate_up")
                assert given == _calls(card, "take_sum") == computed == 2 * steps, "of two layers, in each step"
                assert _calls(card, "experts_") + _calls(card, "routed_") > 0, "the third layer's are the card's"
    assert np.abs(logits[0] - logits[1]).max() < 1e-4 and answers[0] == answers[1]


@pytest.mark.skipif(device.has_cuda(), reason="here the real one runs")
@pytest.mark.usefixtures("eager")
def test_a_card_hands_over_to_the_cpu(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are launched ahead, of prompts in parts, and with rows of logits or without."""
    with mlxr.load(_artifact(0), weights, host="sim") as model:
        expected = [a.token_ids for a in model.start([_IDS * 3, _IDS[:3]], max_tokens=5).finish()]
    artifact = _artifact(3)
    card = use_card_and_cpu(monkeypatch, artifact)
    with mlxr.load(artifact, weights, host="cuda") as model:
        before = _calls(model.experts.launches, "give_sum") if model.experts else 0
        card.given = card.taken = 0
        got = [a.token_ids for a in model.start([_IDS * 3, _IDS[:3]], max_tokens=5).finish()]
        assert model.experts is not None and got == expected
        assert card.given == card.taken == _calls(model.experts.launches, "give_sum") - before > 3 * 5


def test_a_step_may_come_late_or_never(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that was begun and left, and one whose rows come when the CPU has looked for them for long."""
    with mlxr.load(_artifact(0), weights, host="sim") as model:
        expected = model.generate(_IDS, max_tokens=3).token_ids
    with mlxr.load(_artifact(2), weights, host="sim") as model:
        begin, waits = Handover.begin, [0.0, 0.8, 0.0]
        monkeypatch.setattr(Handover, "begin", lambda ours: (begin(ours), time.sleep(waits.pop() if waits else 0)))
        assert model.generate(_IDS, max_tokens=3).token_ids == expected
        assert model.experts is not None
        model.experts.begin()
        assert model.generate(_IDS[:4], max_tokens=2).token_ids and not waits


def test_a_step_that_is_left_in_the_middle_is_computed_anew(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mlxr.load(_artifact(2), weights, host="sim") as model:
        expected = model.logits(_IDS)
        take, failures = Handover.take, [None, KeyboardInterrupt]

        def interrupted(ours: Handover, out: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]") -> None:
            take(ours, out)
            if failures and failures.pop() is not None:
                raise KeyboardInterrupt

        monkeypatch.setattr(Handover, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.logits(_IDS[:5])
        assert np.array_equal(model.logits(_IDS), expected)


def test_both_parts_together_have_the_weights_of_the_whole() -> None:
    whole, cut = _artifact(0), _artifact(2)
    assert cut.experts is not None
    card, cpu = cut.plan, cut.experts.plan
    names = [part.name for plan in (card, cpu) for weight in plan.weights for part in weight.parts]
    assert sorted(names) == sorted(part.name for weight in whole.plan.weights for part in weight.parts)
    ours = [name for weight in cpu.weights for name in (part.name for part in weight.parts)]
    assert all(".mlp.experts." in name and name.startswith(("layers.0.", "layers.1.")) for name in ours)
    assert card.first.memory.weights_bytes + cpu.first.memory.weights_bytes == whole.plan.first.memory.weights_bytes
    assert cpu.first.memory.arena_bytes == 0


def test_hosts_that_compute_all_experts_say_so(weights: Path) -> None:
    with pytest.raises(HostError, match="host reference computes all of them itself"):
        mlxr.load(_artifact(2), weights, host="reference")


@pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC; pip install nvidia-cuda-nvrtc")
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_the_kernels_compile(dtype: mx.Dtype) -> None:
    flags = ("--std=c++17", "--device-as-default-execution-space", "--gpu-architecture=sm_90a")
    assert compile_cubin("handover", with_names(kernel_text(dtype, HandoverLayout(48, 48, 2, 32))), flags)

"""Some layers' experts on the CPU, beside a card: on sim, and on a fake card, each with host cpu's own program."""

import gc
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

import mlxr
from mlxr.compiler.artifact import Artifact, HandoverLayout
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import HostError
from mlxr.runtime.engine.cpu_experts import CpuExperts, resting
from mlxr.runtime.hosts.cuda import device
from mlxr.runtime.hosts.cuda.driver import call
from mlxr.runtime.hosts.cuda.handover.card_handover import kernel_text, with_names
from mlxr.runtime.hosts.cuda.handover.pinned_memory import PinnedMemory
from mlxr.runtime.hosts.cuda.nvrtc import compile_cubin
from mlxr.runtime.hosts.cuda.parallel.peer_memory import PeerMemory
from mlxr.runtime.hosts.handover import STOP_AT, Handover
from mlxr_tests.card_and_cpu import file_with_experts, spec_with_experts, use_card_and_cpu
from mlxr_tests.fake_driver import use_driver
from mlxr_tests.has_nvrtc import has_nvrtc

_IDS = [5, 17, 3, 44, 9, 28, 1, 60, 33, 12, 7]
_PROMPTS = [_IDS * 3, _IDS[:3]]


class _Expected(NamedTuple):
    """What the model computes with all experts on the card."""

    logits: npt.NDArray[np.float32]
    answers: list[list[int]]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of weights."""
    return file_with_experts(tmp_path_factory.mktemp("experts"))


@pytest.fixture(scope="module")
def expected(weights: Path) -> _Expected:
    """See `_Expected`."""
    with mlxr.load(_artifact(0), weights, host="sim") as model:
        return _Expected(model.logits(_IDS), _answers(model))


@pytest.fixture(scope="module")
def cut(weights: Path) -> Iterator[mlxr.Model]:
    """The model with two of three layers' experts on the CPU."""
    with mlxr.load(_artifact(2), weights, host="sim") as model:
        yield model


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Python collects nothing that refers to itself, unless it is told to."""
    gc.disable()
    yield
    gc.enable()


def _artifact(layers_on_cpu: int) -> Artifact:
    return compile_spec(spec_with_experts(layers_on_cpu), targets=("metal",)).artifact


def _answers(model: mlxr.Model) -> list[list[int]]:
    return [answer.token_ids for answer in model.start(_PROMPTS, max_tokens=5).finish()]


def _calls(counts: dict[str, int], kernel: str) -> int:
    return sum(times for name, times in counts.items() if name.startswith(kernel))


def _computed(model: mlxr.Model, kernel: str = "experts_gate_up") -> int:
    assert model.experts is not None
    return _calls(model.experts.launches, kernel)


def test_a_cut_plan_computes_what_the_whole_one_does(cut: mlxr.Model, expected: _Expected) -> None:
    assert np.abs(cut.logits(_IDS) - expected.logits).max() < 1e-4 and _answers(cut) == expected.answers
    card = cut.host.launches
    given = _calls(card, "give_routed")
    assert given == _calls(card, "take_sum") == _computed(cut) == 2 * _calls(card, "embed_"), "of two layers, each step"
    assert _calls(card, "experts_") + _calls(card, "routed_") > 0, "the third layer's are the card's"


def test_a_step_may_come_late_or_never(cut: mlxr.Model, expected: _Expected, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that was begun and left, and one whose rows come when the CPU has looked for them for long."""
    begin, waits = Handover.begin, [0.0, 0.8, 0.0]
    monkeypatch.setattr(Handover, "begin", lambda ours: (begin(ours), time.sleep(waits.pop() if waits else 0)))
    assert cut.experts is not None
    cut.experts.begin()
    assert _answers(cut) == expected.answers and not waits


def test_a_step_that_is_left_in_the_middle_is_computed_anew(
    cut: mlxr.Model, expected: _Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, ends = Handover.take, [True]

    def interrupted(ours: Handover, out: npt.NDArray[np.float32]) -> None:
        take(ours, out)
        if ends and ends.pop():
            raise KeyboardInterrupt

    monkeypatch.setattr(Handover, "take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cut.logits(_IDS[:5])
    assert np.abs(cut.logits(_IDS) - expected.logits).max() < 1e-4


def test_the_cpu_rests_while_steps_are_prepared(cut: mlxr.Model, expected: _Expected) -> None:
    """It answers with zeros, and computes again afterwards."""
    with resting(cut.experts):
        assert np.abs(cut.logits(_IDS) - expected.logits).max() > 0.1
    assert np.abs(cut.logits(_IDS) - expected.logits).max() < 1e-4


@pytest.mark.skipif(device.has_cuda(), reason="here the real one runs")
@pytest.mark.usefixtures("eager", "uncollected")
def test_a_card_hands_over_to_the_cpu(weights: Path, expected: _Expected, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are launched ahead, of prompts in parts, and with rows of logits or without."""
    artifact = _artifact(3)
    card = use_card_and_cpu(monkeypatch, artifact)
    with mlxr.load(artifact, weights, host="cuda") as model:
        host = weakref.ref(model.host)
        before, card.given, card.taken = _computed(model, "give_sum"), 0, 0
        assert _answers(model) == expected.answers
        assert card.given == card.taken == _computed(model, "give_sum") - before > 3 * 5

        handover, recovered = model.host.launcher.handover, list[None]()
        monkeypatch.setattr(handover, "recover", lambda: recovered.append(None))
        with pytest.raises(KeyboardInterrupt), model.host.failures():
            raise KeyboardInterrupt
        driver = card.driver
        assert (len(driver.pinned), len(driver.on_card), driver.allocated, driver.retained) == (1, 1, 2, 2)
        assert artifact.experts is not None
        assert driver.pinned_bytes == artifact.experts.plan.first.memory.handover_bytes, "the plan counts it"
        assert recovered, "what is given and not taken would be taken by the next step"
        assert len(handover._waits) == 1, "for the last step"
        there = list[tuple[int, int]]()
        handover._waits[0] = lambda: there.append((len(driver.pinned), len(driver.on_card)))
    assert there == [(1, 1), (1, 0)], "each is freed when the last step has ended"
    assert not (driver.pinned or driver.on_card or driver.retained), "the next load would take as much again"
    assert host() is None, "so would the weights that it has"


class _Server:
    """Serves the steps that are given, and waits for more until it is stopped, as the program does for a time."""

    def __init__(self, memory: "_Memory") -> None:
        self.memory, self.launches, self.given = memory, Counter[str](), threading.Semaphore(0)
        self.serving, self.has_served = False, threading.Event()

    def serve(self, links: int) -> int:
        """See `mlxr_serve`."""
        assert links
        self.serving, served = True, 0
        while not self.memory.numbers[STOP_AT // 4]:
            if self.given.acquire(timeout=0.001):
                served += 1
                self.has_served.set()
        self.serving = False
        return served

    def close(self) -> None:
        """Has nothing."""


class _Memory:
    """What both see."""

    def __init__(self) -> None:
        self.numbers, self.frees = np.zeros(STOP_AT // 4 + 1, np.uint32), 0
        self.address = self.numbers.ctypes.data

    def free(self) -> None:
        """Counts it."""
        self.frees += 1


class _Handed:
    """A lock that whoever waits for it gets before who has had it."""

    def __init__(self) -> None:
        self.lock, self.waiting = threading.Lock(), 0

    def __enter__(self) -> None:
        self.waiting += 1
        self.lock.acquire()
        self.waiting -= 1

    def __exit__(self, *_: object) -> None:
        self.lock.release()
        while self.waiting and not self.lock.locked():
            time.sleep(0)


def test_nobody_looks_for_a_step_that_a_reset_has_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are begun, and one comes; after the reset the thread sleeps until the next is begun."""
    memory = _Memory()
    server = _Server(memory)
    experts = CpuExperts(server)
    monkeypatch.setattr(experts._turns, "running", _Handed())
    experts.attach(memory, HandoverLayout(48, 48, 2, 32))
    for _ in range(2):
        experts.begin()
    server.given.release()  # one of two comes
    assert server.has_served.wait(10)
    experts.reset(lambda: None)
    time.sleep(0.02)
    assert not server.serving, "it looks for a step that nobody has begun"
    server.has_served.clear()
    experts.begin()
    server.given.release()
    assert server.has_served.wait(10)
    experts.close()
    assert memory.frees == 1


def test_a_card_whose_launches_failed_is_closed_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call of the driver fails from then on, and what made it so has been told."""
    driver = use_driver(monkeypatch)
    waits = [lambda: call("cuEventSynchronize")]
    memories = [PinnedMemory(64, waits), PeerMemory(64)]
    for name in ("cuEventSynchronize", "cuMemFree_v2"):
        monkeypatch.setattr(driver, name, lambda *_: 719, raising=False)
    for memory in memories:
        memory.free()
    assert driver.pinned and driver.on_card


def test_both_parts_together_have_the_weights_of_the_whole() -> None:
    whole, cut = _artifact(0), _artifact(2)
    assert cut.experts is not None
    card, cpu = cut.plan, cut.experts.plan
    names = [part.name for plan in (card, cpu) for weight in plan.weights for part in weight.parts]
    assert sorted(names) == sorted(part.name for weight in whole.plan.weights for part in weight.parts)
    ours = [part.name for weight in cpu.weights for part in weight.parts]
    assert all(".mlp.experts." in name and name.startswith(("layers.0.", "layers.1.")) for name in ours)
    assert card.first.memory.weights_bytes + cpu.first.memory.weights_bytes == whole.plan.first.memory.weights_bytes
    memory = cpu.first.memory
    assert memory.arena_bytes == 0 and memory.handover_bytes == HandoverLayout.of(card).size_bytes > 0
    assert memory.total_bytes == memory.weights_bytes + memory.activation_bytes + memory.handover_bytes


def test_hosts_that_compute_all_experts_say_so(weights: Path) -> None:
    with pytest.raises(HostError, match="host reference computes all of them itself"):
        mlxr.load(_artifact(2), weights, host="reference")


@pytest.mark.skipif(not has_nvrtc(), reason="no NVRTC; pip install nvidia-cuda-nvrtc")
def test_the_kernels_compile() -> None:
    flags = ("--std=c++17", "--device-as-default-execution-space", "--gpu-architecture=sm_90a")
    text = with_names(kernel_text(mx.bfloat16, HandoverLayout(48, 48, 2, 32)))
    assert compile_cubin("handover", text, flags)

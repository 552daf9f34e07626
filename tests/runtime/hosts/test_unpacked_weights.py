"""Weights that host cuda unpacks for MLX: kept as far as there is memory, and whatever is kept, the same logits."""

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.errors import HostError
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.cuda import device, kept_weights
from mlxr.runtime.hosts.cuda.host import CudaHost
from mlxr_tests.fake_card import SimLauncher, Sums, use_card
from mlxr_tests.format_planes import random_buffers
from mlxr_tests.specs import UNPACKED, compiled, small_spec

pytestmark = pytest.mark.skipif(device.has_cuda(), reason="here the real one runs")

QUANTISED: dict[str, Any] = UNPACKED | {"model__num_layers": 4, "model__context": 64}
LAYER = 2 * (256 * 384 + 256 * 256 + 3 * 256 * 512)
"""Bytes of one layer's weights unpacked; each of the four layers is one launch."""
PROMPT = list(range(1, 40))


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return compiled(small_spec(**QUANTISED), Geometry.of(mlx_quantised_min_rows=18))


class Card:
    """A host on a card with some memory, and how often it unpacked."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, artifact: Artifact, traces: bool = False, **memory: int
    ) -> None:
        use_card(monkeypatch, artifact, Sums() if traces else SimLauncher(artifact))
        info = mx.device_info(mx.Device(mx.gpu)) | memory
        monkeypatch.setattr(mx, "device_info", lambda *_: info)
        (mx.enable_compile if traces else mx.disable_compile)()
        self.plan = artifact.plan
        self.pager = Pager.from_geometry(artifact.plan.arena)
        self.host = CudaHost(artifact, random_buffers(artifact.plan)[0], Arena(artifact.plan.arena))

    def step(self, *prompts: list[int]) -> tuple[np.ndarray[Any, Any], int]:
        """One step of new sequences: logits, and how many launches unpacked weights."""
        self.host.launches.clear()
        ids = [self.pager.add_sequence() for _ in prompts]
        parts = [BatchRequest(seq_id, tokens, 0) for seq_id, tokens in zip(ids, prompts, strict=True)]
        logits = self.host.read(self.host.step(Batch.build(parts, self.pager, self.plan.query_tile)))
        for seq_id in ids:
            self.pager.free(seq_id)
        unpacks = {kernel.name for kernel in self.plan.first.kernels if kernel.label == "unpack"}
        return logits, sum(self.host.launches[name] for name in unpacks)


@pytest.fixture(autouse=True)
def compile_again() -> Any:
    yield
    mx.enable_compile()


@pytest.fixture(scope="module")
def expected(artifact: Artifact) -> np.ndarray[Any, Any]:
    """Logits of a card without memory to spare."""
    with pytest.MonkeyPatch.context() as patch:
        card = Card(patch, artifact)
        found = [card.step(PROMPT) for _ in range(3)]
    assert [count for _, count in found] == [4, 4, 4], "each prompt unpacks all"
    return found[0][0]


@pytest.mark.parametrize(
    ("memory", "unpacked"),
    [
        pytest.param({"total_memory": 8 * 4 * LAYER}, [4, 0, 0], marks=pytest.mark.long),
        ({"total_memory": 8 * 4 * LAYER, "free_memory": 2 * 4 * LAYER - 2}, [4, 1, 0]),
        ({"total_memory": 8 * 4 * LAYER - 8}, [4, 1, 1]),
        pytest.param({"total_memory": 8 * LAYER - 8}, [4, 4, 4], marks=pytest.mark.long),
    ],
)
def test_as_much_is_kept_as_there_is_memory_for(
    monkeypatch: pytest.MonkeyPatch,
    artifact: Artifact,
    expected: np.ndarray[Any, Any],
    memory: dict[str, int],
    unpacked: list[int],
) -> None:
    """An eighth of all, and at most half of what is free."""
    card = Card(monkeypatch, artifact, **memory)
    for count in unpacked:
        logits, launches = card.step(PROMPT)
        assert launches == count
        assert np.array_equal(logits, expected)
    kept = (4 - unpacked[-1]) * LAYER
    assert card.host._kept.nbytes == kept
    told = f"{kept >> 20} MiB of weights are kept unpacked for MLX (MLXR_UNPACKED_MIB=0: none)"
    assert card.host.notes == ((told,) if kept else ())


def test_nobody_asks_for_memory_once_all_is_kept(monkeypatch: pytest.MonkeyPatch, artifact: Artifact) -> None:
    card = Card(monkeypatch, artifact, total_memory=1 << 40)
    card.step(PROMPT)
    monkeypatch.setattr(mx, "device_info", None)
    assert card.step(PROMPT[:30])[1] == 0


@pytest.mark.parametrize(("setting", "unpacked"), [("0", 4), ("2", 3), ("100", 0)])
def test_the_setting_counts(monkeypatch: pytest.MonkeyPatch, artifact: Artifact, setting: str, unpacked: int) -> None:
    monkeypatch.setenv("MLXR_UNPACKED_MIB", setting)
    card = Card(monkeypatch, artifact, total_memory=8 * 4 * LAYER)
    card.step(PROMPT)
    assert card.step(PROMPT)[1] == unpacked


@pytest.mark.parametrize("setting", ["", "1GB", "-1", "1.5"])
def test_a_bad_setting_is_refused(monkeypatch: pytest.MonkeyPatch, artifact: Artifact, setting: str) -> None:
    monkeypatch.setenv("MLXR_UNPACKED_MIB", setting)
    with pytest.raises(HostError, match=f"MLXR_UNPACKED_MIB is '{setting}'; expected MiB of GPU memory"):
        Card(monkeypatch, artifact)


def test_short_prompts_keep_nothing(monkeypatch: pytest.MonkeyPatch, artifact: Artifact) -> None:
    card = Card(monkeypatch, artifact, total_memory=1 << 40)
    assert card.step(PROMPT[:17])[1] == 0
    assert card.step(PROMPT)[1] == 4


def test_where_memory_is_not_there_prompts_go_on(
    monkeypatch: pytest.MonkeyPatch, artifact: Artifact, expected: np.ndarray[Any, Any]
) -> None:
    """And it is told, and not tried again."""
    card, tried = Card(monkeypatch, artifact, total_memory=1 << 40), []

    def fail(arrays: list[mx.array]) -> None:
        tried.append(len(arrays))
        raise RuntimeError("[malloc] out of memory")

    with monkeypatch.context() as broken:
        broken.setattr(kept_weights, "mx", SimpleNamespace(**vars(mx) | {"eval": fail}))
        found = [card.step(PROMPT) for _ in range(3)]
    assert tried == [16]
    (note,) = card.host.notes
    assert note == "weights are unpacked for each prompt, since not all can be kept: [malloc] out of memory"
    assert [count for _, count in found] == [8, 4, 4], "once in vain"
    assert all(np.array_equal(logits, expected) for logits, _ in found)


def test_traces_take_what_is_kept(monkeypatch: pytest.MonkeyPatch, artifact: Artifact) -> None:
    """Made before and after some of it was kept: the first prompt's size needs no unpacking."""
    found = []
    for memory in (0, 1 << 40):
        card = Card(monkeypatch, artifact, traces=True, total_memory=memory)
        many = [[3 + i] for i in range(20)]
        found.append([card.step(*one) for one in ([PROMPT[:9]], *[[PROMPT]] * 3, [PROMPT[:30]], many, many, many)])
    plain, kept = ([logits for logits, _ in one] for one in found)
    assert all(np.isfinite(a).all() and np.array_equal(a, b) for a, b in zip(plain, kept, strict=True))
    assert [count for _, count in found[1]] == [0, 4, 0, 0, 0, 0, 0, 0]
    assert all(count for _, count in found[0][1:])


def test_decode_of_many_sequences_takes_what_prompts_kept(monkeypatch: pytest.MonkeyPatch, artifact: Artifact) -> None:
    """And the other way round; a step of one token each is a decode step."""
    many = [[3 + i] for i in range(20)]
    with pytest.MonkeyPatch.context() as patch:
        plain, count = Card(patch, artifact).step(*many)
    assert count > 0
    after_prompt = Card(monkeypatch, artifact, total_memory=1 << 40)
    after_prompt.step(PROMPT)
    first = Card(monkeypatch, artifact, total_memory=1 << 40)
    for card, expected_count in ((after_prompt, 0), (first, count), (first, 0)):
        logits, count = card.step(*many)
        assert count == expected_count
        assert np.array_equal(logits, plain)
    assert first.step(PROMPT)[1] == 0

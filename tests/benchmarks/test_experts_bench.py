"""The benchmark of experts on the CPU: equal answers pass, and a mistake of few rows does not."""

from collections.abc import Callable
from typing import Any

import experts_on_cpu
import numpy as np
import pytest
from peers import shape_files

from mlxr.runtime.hosts.handover import Handover

_HIDDEN, _VOCAB = 256, 512
_PUBLISHED = shape_files.SHAPES["qwen1.5-moe-a2.7b"]


def _small(layers: int) -> shape_files.PublishedShape:
    """Qwen's shape, as small as super-blocks allow."""
    shape = _PUBLISHED(layers)
    sizes = {2048: _HIDDEN, 5632: 256, 1408: 256, 60: 6}
    layer = {name: tuple(sizes[n] for n in dims) for name, dims in shape.layer(0).items()}
    widths = {"feed_forward_length": 256, "expert_feed_forward_length": 256, "expert_shared_feed_forward_length": 256}
    metadata = dict(shape.metadata) | widths | {"expert_count": 6, "expert_used_count": 2}
    metadata |= {"attention.head_count": 4, "attention.head_count_kv": 4}
    outside = {"output.weight": (_VOCAB, _HIDDEN)}
    return shape_files.PublishedShape("qwen2moe", layers, _HIDDEN, metadata, lambda _: layer, outside, _VOCAB)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Runs it on a small model, with sim in the card's place."""
    monkeypatch.setattr(shape_files, "SHAPES", {"qwen1.5-moe-a2.7b": _small})
    for name, value in (("_PROMPT", 9), ("_STEPS", 3), ("_DECODED", 2)):
        monkeypatch.setattr(experts_on_cpu, name, value)
    monkeypatch.setattr("sys.argv", ["experts_on_cpu.py", "--layers", "2", "--host", "sim"])
    return experts_on_cpu.main


@pytest.mark.long
def test_a_wrong_sum_in_one_step_is_found(run: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The last layer's, of one token: no other row sees it."""
    assert run() == 0
    take, taken = Handover.take, list[Any]()

    def wrong(ours: Handover, out: Any) -> None:
        take(ours, out)
        taken.append(out)
        if len(taken) == 2 + 2:  # the prompt's two layers, and those of the first token
            out[:] = 0.9 * out

    monkeypatch.setattr(Handover, "take", wrong)
    assert run() == 1 and len(taken) > 4


def test_rows_that_go_through_other_experts_are_no_mistake() -> None:
    """As users load it, where few rows differ much and the others little."""
    whole = np.random.default_rng(1).standard_normal((20, 50)).astype(np.float32)
    cut = whole + np.float32(0.01)
    cut[3] = -cut[3]
    rows = experts_on_cpu.differences(whole, cut)
    assert np.median(rows) < 0.02 and rows.max() > 1

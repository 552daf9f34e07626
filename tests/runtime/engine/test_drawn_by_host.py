"""Tokens that a card draws in recorded steps are those that are drawn of logits."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.hosts.cuda import decode_steps
from mlxr.runtime.hosts.cuda.device import has_cuda
from mlxr.runtime.hosts.cuda.recorded_batch import RecordedBatch
from mlxr.runtime.hosts.cuda.recorded_memory import MOST_STEPS
from mlxr.runtime.hosts.likeliest import NUM_ASKED
from mlxr_tests.hash_card import HashCard, use_hash_card
from mlxr_tests.hash_host import Answer, HashEngine

pytestmark = pytest.mark.skipif(has_cuda(), reason="kernels that do nothing would be kept for the real card")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[HashEngine]:
    """Three sequences, whose steps are short enough for launches of several."""
    use_hash_card(monkeypatch)
    engine = HashEngine(60, 4, 3, context=64, pipelines=True, make_host=HashCard)
    engine.seconds = lambda counts: 1e-3  # type: ignore[method-assign]
    yield engine
    engine.check_empty()


def answered(engine: HashEngine, *options: dict[str, Any]) -> None:
    """Runs requests, each of which must get what it gets alone."""
    answers = []
    for i, each in enumerate(options):
        answer = Answer()
        sampling = Sampling(seed=i, max_tokens=40, **each)
        (answer.request,) = engine.requests([3 + i, 10, 17], sampling, answer)
        engine.core.add(answer.request)
        answers.append(answer)
    engine.run()
    for answer in answers:
        assert answer.tokens == engine.alone(answer.request) and len({*answer.tokens}) > 3


@pytest.mark.parametrize(
    "options",
    [
        [{"temperature": 0.7}],
        [{"temperature": 1.5, "top_p": 0.8}, {"temperature": 0.9, "top_k": 3}],
        [{"temperature": 1.0, "min_p": 0.1}, {}, {"temperature": 2.0, "top_k": 9, "top_p": 0.7}],
    ],
    ids=["alone", "top", "beside-greedy"],
)
def test_a_card_draws(engine: HashEngine, options: list[dict[str, Any]]) -> None:
    answered(engine, *options)
    assert engine.host.gone_on and engine.host.num_together, "steps go on, several to a launch"
    assert engine.host.num_more, "and the card was given them little by little"
    answered(engine, *[{}] * len(options))  # by steps of the same size, which do not draw


def test_what_a_card_cannot_draw_is_drawn_of_logits(engine: HashEngine) -> None:
    answered(engine, {"temperature": 1.0, "typical_p": 0.8}, {"temperature": 0.7})
    assert not engine.host.gone_on


def test_rows_that_are_too_long_are_drawn_of_logits(engine: HashEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_steps, "can_draw", lambda rows, width: False)
    answered(engine, {"temperature": 0.7}, {})
    assert not engine.host.gone_on
    answered(engine, {})
    assert engine.host.gone_on, "greedy ones are still chosen by the card"


@pytest.mark.usefixtures("engine")
def test_what_rows_ask_for_goes_round() -> None:
    batch = RecordedBatch.__new__(RecordedBatch)
    batch._rows, batch.count = 2, 3 * MOST_STEPS - 1
    asked = np.arange(3 * 2 * NUM_ASKED, dtype=np.uint32).reshape(3, 2, NUM_ASKED)
    batch.ask(asked)
    np.testing.assert_array_equal(batch._asked[[-1, 0, 1]], asked)
    assert not batch._asked[2:-1].any()

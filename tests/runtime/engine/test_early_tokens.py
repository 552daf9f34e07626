"""Tokens of a long launch are told before its last steps end, at the moment when the next one is planned."""

from types import SimpleNamespace
from typing import Any

import pytest

from mlxr.runtime.engine import launch_lengths
from mlxr.runtime.hosts.cuda.device import has_cuda
from mlxr_tests.hash_card import HashCard, use_hash_card
from mlxr_tests.hash_host import HashEngine


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> HashEngine:
    """Steps of a millisecond, one of which is given to the card at a time, and two told."""
    use_hash_card(monkeypatch)
    for name in ("_MOST_TOLD", "_LEAST_TOLD"):
        monkeypatch.setattr(launch_lengths, name, 2)
    for name in ("AHEAD_SECONDS", "_LAUNCH_SECONDS"):
        monkeypatch.setattr(launch_lengths, name, 1e-3)
    engine = HashEngine(20, 4, 2, context=40, pipelines=True, make_host=HashCard)
    engine.seconds = lambda counts: 1e-3  # type: ignore[method-assign]
    return engine


def run_until_told(engine: HashEngine) -> int:
    """Runs until tokens of a launch with more steps have been told; how many steps the card was given until then."""
    early, core = -1, engine.core
    while not (
        engine.host.num_early > early > 0 and core._ahead and core._ahead.first and core._ahead.prepared.left > 2
    ):
        early = engine.host.num_early
        assert core.step()
    return len(engine.host.steps)


@pytest.mark.skipif(has_cuda(), reason="its kernels, which do nothing, would be kept for the real card")
def test_a_request_that_comes_when_tokens_are_told_joins_the_next_launch(engine: HashEngine) -> None:
    first = engine.add([3, 10, 17], 30)
    given, told = run_until_told(engine), len(first.tokens)
    assert 3 + told < first.request.run.computed, "the launch has more steps"
    second = engine.add([5, 6, 7, 8], 4)
    engine.core.step()
    assert second.request.run.computed == 4, "its prompt is in the launch that follows"
    assert engine.host.steps[given:] == [[1, 4]], "no more of the launch before is given to the card"
    engine.run()
    assert first.tokens == engine.alone(first.request) and second.tokens == engine.alone(second.request)
    engine.check_empty()


@pytest.mark.skipif(has_cuda(), reason="its kernels, which do nothing, would be kept for the real card")
def test_what_the_card_was_not_given_is_left_out_when_a_request_leaves(engine: HashEngine) -> None:
    first, second = engine.add([3, 10, 17], 30), engine.add([5, 6, 7, 8], 30)
    given = run_until_told(engine)
    engine.core.drop(second.request)
    engine.core.step()
    assert engine.host.steps[given:] == [[1]], "the next launch is of those that are left"
    engine.run()
    assert first.tokens == engine.alone(first.request)
    engine.check_empty()


@pytest.mark.skipif(has_cuda(), reason="its kernels, which do nothing, would be kept for the real card")
def test_a_call_ends_the_wait_for_tokens(engine: HashEngine) -> None:
    engine.core.has_callers = True
    first = engine.add([3, 10, 17], 30)
    run_until_told(engine)
    told = len(first.tokens)
    engine.core.wake.set()
    given = len(engine.host.steps)
    engine.core.step()
    assert len(first.tokens) == told and len(engine.host.steps) == given + 1, "one more step was given, none is told"
    engine.run()
    assert first.tokens == engine.alone(first.request)


@pytest.mark.parametrize(
    ("sequences", "seconds", "decoded", "most"),
    [
        (1, 1e-3, 100, 24),
        (1, 5e-3, 100, 12),
        (1, 25e-3, 100, 2),
        (64, 6e-3, 100, 16),
        (64, 11e-3, 100, 10),
        (64, 1, 9, 0),
    ],
)
def test_how_many_steps_are_told_together(
    monkeypatch: pytest.MonkeyPatch, sequences: int, seconds: float, decoded: int, most: int
) -> None:
    monkeypatch.setattr(launch_lengths.StepTimes, "launch_seconds", lambda *_: seconds)
    lengths = HashEngine(20, 4, 2).core.scheduler.lengths
    step: Any = SimpleNamespace(parts=[None] * sequences, num_repeats=decoded - 5)
    assert lengths.num_told(step, 5) == most
    step.num_repeats = 1
    assert lengths.num_told(step, 0) == min(most, 1), "at first as many as were decoded"

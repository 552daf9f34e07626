"""Tokens of a long launch are told before its last steps end, at the moment when the next one is planned."""

import pytest

from mlxr.runtime.engine import scheduler
from mlxr.runtime.hosts.cuda.device import has_cuda
from mlxr_tests.hash_card import HashCard, use_hash_card
from mlxr_tests.hash_host import HashEngine


@pytest.mark.skipif(has_cuda(), reason="its kernels, which do nothing, would be kept for the real card")
def test_a_request_that_comes_when_tokens_are_told_joins_the_next_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    use_hash_card(monkeypatch)
    monkeypatch.setattr(scheduler, "LONG_SECONDS", 0.0)
    monkeypatch.setattr(scheduler, "AHEAD_SECONDS", 1e-3)
    engine = HashEngine(20, 4, 2, context=40, pipelines=True, make_host=HashCard)
    engine.seconds = lambda counts: 1e-3  # type: ignore[method-assign]
    first = engine.add([3, 10, 17], 30)
    while engine.host.num_early < 2:
        assert engine.core.step()
    told, computed = len(first.tokens), first.request.run.computed
    assert 3 + told == computed, "the last step of three still runs"
    second = engine.add([5, 6, 7, 8], 4)
    engine.core.step()
    assert second.request.run.computed == 4, "its prompt is in the launch that follows"
    engine.run()
    assert first.tokens == engine.alone(first.request) and second.tokens == engine.alone(second.request)
    engine.check_empty()

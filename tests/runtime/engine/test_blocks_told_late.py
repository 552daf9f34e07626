"""The prefix cache is told of many blocks of an answer together, but nobody who looks for them misses one."""

import pytest

from mlxr_tests.hash_host import HashEngine

PROMPT = [3, 10, 17, 25, 3, 12]


def test_a_request_begins_with_what_an_answer_that_is_running_has_computed() -> None:
    engine = HashEngine(max_sequences=2)
    first = engine.add(PROMPT, 40).request
    while first.run.certain < 25:
        engine.core.step()
    tokens = [*first.answer.tokens[:25], 0]
    assert engine.pager.find_prefix(tokens, first.hashes).num_tokens == len(PROMPT), "nobody has looked for more yet"
    second = engine.add(tokens, 2).request
    engine.core.step()
    assert second.answer.completion.cached_tokens >= 24
    engine.run()
    engine.check_empty()


@pytest.mark.parametrize("pipelines", [False, True], ids=["plain", "pipelined"])
def test_an_interruption_costs_no_full_block(pipelines: bool) -> None:
    engine = HashEngine(pipelines=pipelines)
    request = engine.add(PROMPT, 40).request
    while request.run.certain < 25:
        engine.core.step()
    certain, engine.host.interruption = request.run.certain, KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        while True:
            engine.core.step()
    engine.core.step()
    assert request.run.computed > certain // 4 * 4, "what was certain is not computed again"
    engine.run()
    assert request.answer.completion.token_ids == engine.alone(request)
    engine.check_empty()

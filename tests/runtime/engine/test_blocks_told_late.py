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
    assert engine.pager.find_prefix(tokens, first.hashes).num_tokens == len(PROMPT) + 1, "nobody has looked for more"
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


@pytest.mark.parametrize("pipelines", [False, True], ids=["plain", "pipelined"])
def test_the_first_token_comes_before_the_cache_is_told_of_its_prompt(pipelines: bool) -> None:
    """Unless somebody waits. Who comes then finds all of it, and a prompt that ends at once leaves all of it."""
    engine = HashEngine(max_sequences=2, pipelines=pipelines)
    first = engine.add(PROMPT, 40).request
    while len(first.answer.tokens) == len(PROMPT):
        engine.core.step()
    assert first.run.certain >= len(PROMPT) and not first.run.told
    second = engine.add(PROMPT, 2).request
    engine.core.step()
    assert second.answer.completion.cached_tokens == len(PROMPT) - 1
    engine.run()
    third, tokens = engine.add(PROMPT[::-1], 1).request, [*PROMPT[::-1], 0]
    engine.run()
    assert engine.pager.find_prefix(tokens, third.hashes).num_tokens == len(PROMPT)
    engine.check_empty()

"""What counts as generated: the tokens that answers get, wherever steps choose more."""

import pytest

from mlxr.runtime.engine.sampling import Sampling
from mlxr_tests.hash_host import HashEngine

PROMPT = [3, 10, 17, 25, 0, 9, 16, 23, 30, 7, 15]


@pytest.mark.parametrize("pipelines", [False, True], ids=["plain", "pipelined"])
def test_only_tokens_of_answers_count_as_generated(pipelines: bool) -> None:
    """A stop token ends an answer within several steps of a launch, and beside one that goes on."""
    engine = HashEngine(pipelines=pipelines)
    whole = engine.add(PROMPT[:5], 12)
    engine.run()
    for place in range(12):
        (request,) = engine.requests(PROMPT[:5], Sampling(max_tokens=30, stop_tokens=(whole.tokens[place],)))
        before = engine.core.stats().generated_tokens
        engine.core.add(request)
        other = engine.add(PROMPT[5:], 20)
        engine.run()
        got = len(request.answer.completion.token_ids) + len(other.tokens)
        assert engine.core.stats().generated_tokens - before == got

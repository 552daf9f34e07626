"""DRY: the penalties of the definition, however the text has grown, and breakers found in the text of tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.sampling import Sampler, Sampling
from mlxr.runtime.engine.sampling.dry import Dry
from mlxr_tests.slow_sampling import dry_penalties

TEXTS = ["a", "b", "\n", "b: ", ": "]
TOKENS = st.lists(st.integers(0, len(TEXTS) - 1), max_size=25)


def token_bytes(token: int) -> bytes:
    return TEXTS[token].encode()


def told(dry: Dry, draft: list[int]) -> dict[int, float]:
    ids, minus = dry.penalties(draft)
    return dict(zip(ids.tolist(), minus.tolist(), strict=True))


@settings(max_examples=150, deadline=None, database=None)
@given(TOKENS, TOKENS, TOKENS, st.integers(1, 3), st.sampled_from([0, 1, 5, 12]), st.booleans())
def test_penalties_are_those_of_the_definition(
    prompt: list[int], answer: list[int], draft: list[int], allowed: int, window: int, use_breakers: bool
) -> None:
    options = Sampling(
        dry_multiplier=0.8,
        dry_allowed_length=allowed,
        dry_range=window,
        dry_breakers=["\n", ":"] if use_breakers else [],
    )
    dry = Dry(options, prompt, token_bytes)
    for token in answer:
        dry.accept(token)
    for ahead in (draft, []):
        want = dry_penalties([*prompt, *answer, *ahead], options, [2, 3, 4] if use_breakers else [])
        assert told(dry, ahead) == pytest.approx(want)


def test_a_breaker_may_be_spelled_by_several_tokens() -> None:
    texts = {0: "x", 1: "E", 2: "ND", 3: "y"}
    options = Sampling(dry_multiplier=1.0, dry_breakers=["END"])
    dry = Dry(options, [0, 1, 2, 3, 3, 0, 1, 2, 3], lambda token: texts[token].encode())
    assert told(dry, []) == {}, "only y has come since the breaker"
    assert told(dry, [3]) == {0: 1.0}
    without = Dry(Sampling(dry_multiplier=1.0, dry_breakers=[]), [0, 1, 2, 3, 3, 0, 1, 2, 3], None)
    assert told(without, []) == {3: pytest.approx(1.75**2)}


def test_a_long_repetition_is_read_in_time_and_its_penalty_is_finite() -> None:
    prompt = [5] * 100_000
    dry = Dry(Sampling(dry_multiplier=1.0, dry_breakers=[]), prompt, None)
    assert told(dry, [5, 5]) == {5: np.float32(1e30)}


def test_breakers_need_a_tokenizer() -> None:
    with pytest.raises(RequestError, match="dry_breakers need a tokenizer"):
        Sampler(Sampling(dry_multiplier=1.0), 0, [1])

"""What a sampler remembers: random numbers by position, the tokens that penalties count, what it refuses."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxr.runtime.engine.sampling import Row, Sampler, Sampling, sample_rows
from mlxr.runtime.engine.sampling.seen_tokens import SeenTokens

LOGITS = np.log(np.array([[0.05, 0.4, 0.1, 0.25, 0.2]], dtype=np.float32))
RANDOM = Sampling(temperature=1.0, seed=7)


def test_a_number_depends_on_seed_stream_and_position_alone() -> None:
    numbers = [Sampler(RANDOM, 2).uniform(position) for position in range(200)]
    sampler = Sampler(RANDOM, 2)
    order = np.random.default_rng(1).permutation(200).tolist()
    assert [sampler.uniform(position) for position in order] == [numbers[position] for position in order]
    assert sampler.uniform(3) == sampler.uniform(3) == numbers[3]
    for each in (sampler, Sampler(RANDOM, 2)):
        assert each.uniforms(30, 150).tolist() == numbers[30:180] and each.uniforms(5, 3).tolist() == numbers[5:8]
    for other in (Sampler(RANDOM, 1), Sampler(Sampling(temperature=1.0, seed=8), 2)):
        assert not {other.uniform(position) for position in range(200)} & set(numbers)
    assert all(0 <= number < 1 for number in numbers) and abs(np.mean(numbers) - 0.5) < 0.1


def test_a_request_without_a_seed_has_numbers_of_its_own() -> None:
    options = Sampling(temperature=1.0)
    assert Sampler(options).uniform(0) != Sampler(options).uniform(0)
    assert Sampler(Sampling(temperature=1.0, seed=2**64 - 1)).uniform(0) == pytest.approx(0.5, abs=0.5)


def test_recorded_tokens() -> None:
    """A seed gives the same tokens in every version."""
    sampler = Sampler(RANDOM)
    tokens = [sample_rows(LOGITS, [Row(sampler, position)])[0].token for position in range(16)]
    assert tokens == [0, 4, 1, 1, 1, 1, 3, 3, 1, 3, 3, 4, 3, 1, 0, 1]


@settings(max_examples=100, deadline=None, database=None)
@given(*[st.lists(st.integers(0, 40), max_size=60)] * 3)
def test_seen_tokens_are_counted(prompt: list[int], answer: list[int], draft: list[int]) -> None:
    seen = SeenTokens(prompt)
    for token in answer:
        seen.accept(token)
    for ahead in (draft, []):
        ids, counts = seen.after(ahead)
        told = dict(zip(ids.tolist(), counts.tolist(), strict=True))
        assert told == {token: (answer + ahead).count(token) for token in {*prompt, *answer, *ahead}}
        assert len(told) == len(ids)


@pytest.mark.parametrize(
    ("options", "needs_tokens", "is_plain"),
    [
        ({}, False, True),
        ({"temperature": 1.0, "top_p": 0.5, "logprobs": 3, "max_tokens": 4}, False, True),
        ({"logit_bias": {1: 1.0}}, False, False),
        ({"min_tokens": 1}, False, False),
        ({"repetition_penalty": 1.1}, True, False),
        ({"frequency_penalty": 0.1}, True, False),
        ({"presence_penalty": -0.1}, True, False),
        ({"dry_multiplier": 0.8, "dry_breakers": ()}, True, False),
    ],
    ids=str,
)
def test_which_samplers_need_the_tokens_before(options: dict[str, Any], needs_tokens: bool, is_plain: bool) -> None:
    sampler = Sampler(Sampling(**options), 0, [1])
    assert (sampler.needs_tokens, sampler.is_plain) == (needs_tokens, is_plain)


@pytest.mark.parametrize("token_of_the_tokenizer_alone", [False, True])
def test_the_answer_does_not_end_before_its_minimum(token_of_the_tokenizer_alone: bool) -> None:
    stop_ids = [1, 99] if token_of_the_tokenizer_alone else [1]
    sampler = Sampler(Sampling(min_tokens=2), 0, [0], stop_ids)
    assert [sample_rows(LOGITS, [Row(sampler, position)])[0].token for position in range(4)] == [3, 3, 1, 1]
    only_the_end = np.array([0b10], dtype=np.int32)
    assert sample_rows(LOGITS, [Row(sampler, 0, only_the_end)])[0].token == 1, "the constraint comes first"

"""Tokens for rows of logits: the slow definitions, frequencies, rows that do not depend on each other, broken rows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxr.compiler.errors import HostError, RequestError
from mlxr.runtime.engine.sampling import Row, Sampled, Sampler, Sampling, sample_rows
from mlxr.runtime.engine.sampling.rows import draw
from mlxr_tests.few import examples
from mlxr_tests.slow_sampling import probabilities

LOGITS = np.log(np.array([0.05, 0.4, 0.1, 0.25, 0.2], dtype=np.float32))
LIMIT = 6.0  # standard deviations; a right sampler passes it once in some 10,000 seeds
STOP_IDS = (0, 3)
UNIFORMS = [0.0, 0.07, 0.21, 0.5, 0.77, 0.93, float(np.nextafter(1, 0))]


class Fixed(Sampler):
    """A sampler whose random number is fixed."""

    number = 0.0

    def uniform(self, position: int) -> float:
        return self.number


def packed(allowed: Sequence[int], size: int) -> npt.NDArray[np.int32]:
    bits = np.zeros(-(-size // 32) * 32, dtype=np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def options(size: int) -> st.SearchStrategy[dict[str, Any]]:
    """Odd numbers, so that no sum lies at a border but by ties."""
    few: dict[str, Any] = {
        "temperature": st.sampled_from([0.0, 1e-60, 0.25, 1.0, 3.0]),
        "top_k": st.integers(0, size + 2),
        "top_p": st.sampled_from([1e-300, 0.013, 0.317, 0.771, 0.983]),
        "min_p": st.sampled_from([0.0137, 0.217, 0.731, 1.0]),
        "typical_p": st.sampled_from([1e-300, 0.113, 0.571, 0.937]),
        "repetition_penalty": st.sampled_from([0.71, 1.37]),
        "repetition_range": st.sampled_from([1, 3]),
        "frequency_penalty": st.sampled_from([-0.67, 0.43]),
        "presence_penalty": st.sampled_from([-0.59, 0.31]),
        "dry_multiplier": st.sampled_from([0.83]),
        "dry_range": st.sampled_from([0, 4]),
        "min_tokens": st.integers(0, 6),
        "logit_bias": st.dictionaries(st.integers(0, size - 1), st.sampled_from([-100.0, -1.13, 2.17]), max_size=3),
        "logprobs": st.integers(0, 4),
    }
    return st.fixed_dictionaries({"temperature": few.pop("temperature")}, optional=few)


@st.composite
def cases(draw_: st.DrawFn, size: int) -> tuple[Sampling, list[int], list[int], list[int] | None]:
    """Options, prompt, answer, allowed tokens."""
    tokens = st.lists(st.integers(0, min(size, 6) - 1), max_size=8)
    allowed = draw_(st.none() | st.lists(st.integers(0, size - 1), min_size=1, max_size=size, unique=True))
    return Sampling(**draw_(options(size)), dry_breakers=[], seed=3), draw_(tokens), draw_(tokens), allowed


def logits_of(size: int, rows: int = 1) -> st.SearchStrategy[npt.NDArray[np.float32]]:
    """Few distinct values, so that ties are common; multiples of 1/4 are exact in f32."""
    values = st.lists(st.integers(-12, 12), min_size=rows * size, max_size=rows * size)
    return values.map(lambda numbers: np.array(numbers, dtype=np.float32).reshape(rows, size) / 4)


@settings(max_examples=examples(150, 60), deadline=None, database=None)
@given(data=st.data())
def test_tokens_are_those_of_the_definitions(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 40))
    logits = data.draw(logits_of(size))[0]
    sampling, prompt, answer, allowed = data.draw(cases(size))
    stop_ids = STOP_IDS if size > 4 else ()  # something else is there to come
    expected = probabilities(
        logits.tolist(), sampling, prompt=prompt, answer=answer, allowed=allowed, stop_ids=stop_ids
    )
    rows = []
    for number in UNIFORMS:
        sampler = Fixed(sampling, 0, prompt, stop_ids)
        sampler.number = number
        for token in answer:
            sampler.accept(token)
        rows.append(Row(sampler, len(answer), None if allowed is None else packed(allowed, size)))
    ends = np.cumsum(expected)
    # No row is too long for candidates, or all are.
    with patch("mlxr.runtime.engine.sampling.candidates.MOST", data.draw(st.sampled_from([4096, 0]))):
        tokens = sample_rows(np.tile(logits, (len(rows), 1)), rows)
    for number, sampled in zip(UNIFORMS, tokens, strict=True):
        assert sampled.error is None and expected[sampled.token] > 0
        begin = ends[sampled.token] - expected[sampled.token]
        assert sampling.temperature == 0 or begin - 2e-6 <= number <= ends[sampled.token] + 2e-6


@settings(max_examples=examples(50, 20), deadline=None, database=None)
@given(data=st.data())
def test_a_row_does_not_depend_on_others(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([1, 7, 131, 5000, 9001]))
    count = data.draw(st.integers(1, 40 if size < 5000 else 16))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    logits = (rng.standard_normal((count, size)) * rng.choice([0.1, 2, 9], (count, 1))).astype(np.float32)
    logits[rng.random(logits.shape) < 0.1] = -np.inf
    logits[:, 0] = 0
    if data.draw(st.booleans()):
        logits[rng.integers(count)] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    kinds = data.draw(st.lists(cases(size), min_size=1, max_size=4))
    rows = []
    for i in range(count):
        sampling, prompt, answer, allowed = kinds[i % len(kinds)]
        sampler = Sampler(sampling, i, prompt, (0,))
        for token in answer:
            sampler.accept(token)
        rows.append(Row(sampler, len(answer), None if allowed is None else packed(allowed, size)))
    together = sample_rows(logits, rows)
    alone = [sample_rows(logits[i : i + 1].copy(), [row])[0] for i, row in enumerate(rows)]
    assert [without_error(sampled) for sampled in together] == [without_error(sampled) for sampled in alone]


def test_rows_of_later_steps_are_as_if_they_said_their_position() -> None:
    """Positions decide on random numbers, and on whether an answer may end."""
    samplers = [Sampler(Sampling(temperature=t, seed=5, min_tokens=3), 0, (), STOP_IDS) for t in (0.0, 1.0)]
    logits = np.tile(np.array([9, 1, 1.5, 9, 1], np.float32), (2, 1))
    for later in range(12):
        found = sample_rows(logits, [Row(sampler, 1) for sampler in samplers], later)
        assert found == sample_rows(logits, [Row(sampler, 1 + later) for sampler in samplers])
        assert (found[0].token in STOP_IDS) == (1 + later >= 3)


def without_error(sampled: Sampled) -> Sampled:
    return replace(sampled, error=None) if sampled.error is None else Sampled(-1)


def draws(count: int = 20_000, logits: npt.NDArray[np.float32] = LOGITS, **options: Any) -> npt.NDArray[np.intp]:
    """How often each token comes."""
    sampler = Sampler(Sampling(**{"seed": 11, "temperature": 1.0, **options}))
    rows = [Row(sampler, i) for i in range(count)]
    tokens = [sampled.token for sampled in sample_rows(np.tile(logits, (count, 1)), rows)]
    return np.bincount(tokens, minlength=logits.size)


def chi_square(counts: npt.NDArray[np.intp], expected: npt.NDArray[np.float64]) -> float:
    """In standard deviations of the statistic; impossible tokens must not have come at all."""
    possible = expected > 0
    assert not counts[~possible].any(), "a token of probability 0 was drawn"
    want = expected[possible] * counts.sum()
    freedom = max(int(possible.sum()) - 1, 1)
    return float((((counts[possible] - want) ** 2 / want).sum() - freedom) / np.sqrt(2 * freedom))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.05, 0.4, 0.1, 0.25, 0.2]),
        ({"temperature": 0.5}, [0.0025, 0.16, 0.01, 0.0625, 0.04]),
        ({"temperature": 2.0}, np.sqrt([0.05, 0.4, 0.1, 0.25, 0.2])),
        ({"top_k": 2}, [0, 0.4, 0, 0.25, 0]),
        ({"top_p": 0.7}, [0, 0.4, 0, 0.25, 0.2]),
        ({"min_p": 0.45}, [0, 0.4, 0, 0.25, 0.2]),
        # The nucleus is that of the 3 left by top-k: 0.4 + 0.25 is 76% of them, and only 65% of all.
        ({"top_k": 3, "top_p": 0.7}, [0, 0.4, 0, 0.25, 0]),
        # Likewise of those left by min-p: 0.4 + 0.25 + 0.2 is 89% of 0.95.
        ({"min_p": 0.2, "top_p": 0.88}, [0, 0.4, 0, 0.25, 0.2]),
        # Temperature comes first: at 2 the greatest has 30%, at 1 it has 40% and would do alone.
        ({"temperature": 2.0, "top_p": 0.38}, [0, np.sqrt(0.4), 0, np.sqrt(0.25), 0]),
        # The entropy is 1.42: 0.25 (1.39) is nearest, then 0.2 (1.61), 0.4 (0.92), 0.1 (2.3), 0.05 (3.0).
        ({"typical_p": 0.3}, [0, 0, 0, 0.25, 0.2]),
        ({"typical_p": 0.5, "top_p": 0.4}, [0, 0.4, 0, 0, 0]),
        ({"logit_bias": {0: float(np.log(8)), 3: -100.0}}, [0.4, 0.4, 0.1, 0, 0.2]),
    ],
)
def test_frequencies(options: dict[str, Any], expected: Sequence[float]) -> None:
    assert chi_square(draws(**options), np.asarray(expected) / np.sum(expected)) < LIMIT


def test_a_bias_comes_before_penalties() -> None:
    """(1 + 1) / 2 is less than 1.2, and 1 / 2 + 1 would be more."""
    sampler = Sampler(Sampling(logit_bias={0: 1.0}, repetition_penalty=2.0), prompt=[0])
    assert sample_rows(np.array([[1, 1.2]], dtype=np.float32), [Row(sampler, 0)]) == [Sampled(1)]


def test_top_p_is_of_exactly_the_k_that_top_k_left() -> None:
    """0.4 is two thirds of the two tokens left, though three are equal to the second."""
    logits = np.log(np.array([0.2, 0.2, 0.4, 0.2], dtype=np.float32))
    assert draws(100, logits, top_k=2, top_p=0.6).tolist() == [0, 0, 100, 0]


def test_the_test_of_frequencies_can_fail() -> None:
    assert chi_square(draws(), np.array([0.08, 0.37, 0.1, 0.25, 0.2])) > LIMIT


@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"top_p": 0.9999}, {"top_k": 70}, {"min_p": 1e-3}], ids=str)
@pytest.mark.parametrize("scale", [0.01, 3.0])
def test_a_vocabulary_of_many_tokens(options: dict[str, Any], scale: float) -> None:
    logits = (np.random.default_rng(5).standard_normal(20_011) * scale).astype(np.float32)
    counts = draws(100, logits, **options)
    expected = probabilities(logits.tolist(), Sampling(temperature=1.0, **options))
    halves = np.argsort(-expected)[: int((np.sort(expected)[::-1].cumsum() < 0.5).sum())]
    both = np.array([expected[halves].sum(), 1 - expected[halves].sum()])
    assert chi_square(np.array([counts[halves].sum(), 100 - counts[halves].sum()]), both) < LIMIT
    assert not counts[expected == 0].any()


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}, {"temperature": 1e-60}], ids=str)
def test_the_narrowest_setting_is_greedy(options: dict[str, Any]) -> None:
    assert draws(50, **options).tolist() == [0, 50, 0, 0, 0]


def test_greedy_takes_the_first_of_equal_maxima() -> None:
    rows = [Row(Sampler(Sampling()), 0)] * 2
    assert sample_rows(np.array([[1, 7, 3, 7], [-np.inf, -5, -9, -5]], dtype=np.float32), rows) == [Sampled(1)] * 2


def test_a_tiny_temperature_still_draws_among_equal_maxima() -> None:
    counts = draws(200, np.array([0, 3, 1, 3], dtype=np.float32), temperature=1e-60)
    assert counts[[0, 2]].tolist() == [0, 0] and counts[[1, 3]].min() > 50


@pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"top_p": 0.9999}, {"temperature": 100.0}], ids=str)
def test_tokens_without_probability_never_come(options: dict[str, Any]) -> None:
    counts = draws(200, np.array([-np.inf, 0, -np.inf, 0, -np.inf], dtype=np.float32), **options)
    assert counts[[0, 2, 4]].tolist() == [0, 0, 0] and counts[[1, 3]].min() > 50


def test_large_logits_do_not_overflow() -> None:
    counts = draws(200, np.array([3e38, 3e38, -3e38, 0], dtype=np.float32))
    assert counts[[0, 1]].min() > 50 and counts[[2, 3]].tolist() == [0, 0]


@pytest.mark.parametrize("size", [128, 384])
@pytest.mark.parametrize("uniform", [0.0, 0.5, np.nextafter(1.0, 0.0), 1.0])
def test_a_draw_at_the_edges_has_weight(uniform: float, size: int) -> None:
    weights = np.zeros((1, size), dtype=np.float32)
    weights[0, [1, size - 2]] = [1, 2]
    assert draw(weights, np.array([[uniform]])).tolist() == [1 if uniform == 0 else size - 2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([0, np.nan, 9, 1], "the model produced a NaN logit (token 1 of 4)"),
        ([0, np.inf, 9, 1], "the model produced an infinite logit (token 1 of 4)"),
        ([-np.inf] * 4, "the model produced only -inf logits"),
    ],
)
def test_a_broken_row_has_an_error_and_the_others_have_tokens(
    temperature: float, bad: list[float], message: str
) -> None:
    logits = np.array([[-50, -50, 0, -50], bad, [0, -50, -50, -50]], dtype=np.float32)
    sampler = Sampler(Sampling(temperature=temperature, presence_penalty=temperature), prompt=[1])
    first, broken, last = sample_rows(logits, [Row(sampler, i) for i in range(3)])
    assert (first.token, last.token) == (2, 0) and first.error is last.error is None
    assert isinstance(broken.error, HostError) and message in str(broken.error)


def test_a_mask_that_leaves_only_tokens_without_probability() -> None:
    logits = np.array([[-np.inf, 0, 0]], dtype=np.float32)
    (sampled,) = sample_rows(logits, [Row(Sampler(Sampling()), 0, packed([0], 3))])
    assert isinstance(sampled.error, RequestError) and "the constraint allows only" in str(sampled.error)


@settings(max_examples=examples(60, 30), deadline=None, database=None)
@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6), st.data())
def test_a_draft_counts_as_accepted(answer: list[int], draft: list[int], data: st.DataObject) -> None:
    """Speculation samples the token after a draft before the draft is accepted."""
    logits = data.draw(logits_of(8))
    penalties = {"repetition_penalty": 1.37, "frequency_penalty": 0.43, "presence_penalty": 0.31, "dry_multiplier": 0.8}
    sampling = Sampling(temperature=1.0, seed=5, dry_breakers=[], **penalties)
    ahead, after = (Sampler(sampling, 0, [1, 2, 1]) for _ in range(2))
    for token in answer:
        ahead.accept(token)
    for token in answer + draft:
        after.accept(token)
    position = len(answer + draft)
    first = sample_rows(logits, [Row(ahead, position, draft=draft)])
    assert first == sample_rows(logits, [Row(after, position)])
    for token in draft:
        ahead.accept(token)
    assert first == sample_rows(logits, [Row(ahead, position)])

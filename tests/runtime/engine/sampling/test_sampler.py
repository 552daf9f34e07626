"""Sampling: definitions of every filter against slow ones, distributions, reproducibility, refusals and speed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxr.compiler.errors import HostError, RequestError
from mlxr.runtime.engine.sampling import Sampler, Sampling
from mlxr.runtime.engine.sampling import sampler as module

LOGITS = np.log(np.array([0.05, 0.4, 0.1, 0.25, 0.2], dtype=np.float32))
LIMIT = 6.0  # standard deviations; a right sampler passes it once in some 10,000 seeds


def draws(sampling, logits=LOGITS, count=20_000):
    sampler = Sampler(sampling)
    return np.bincount([sampler.sample(logits) for _ in range(count)], minlength=logits.size)


def slow_candidates(logits, sampling):
    """The module's definitions, in f64 and by sorting everything: ids kept, and their probabilities."""
    p = np.exp((logits.astype(np.float64) - logits.max()) / sampling.temperature)
    order = sorted(range(logits.size), key=lambda i: (-logits[i], i))
    if sampling.top_k:
        order = order[: sampling.top_k]
    if sampling.top_p < 1:
        total, kept = sum(p[i] for i in order), []
        for i in order:
            kept.append(i)
            if sum(p[j] for j in kept) >= sampling.top_p * total:
                break
        order = kept
    order = sorted(i for i in order if p[i] >= sampling.min_p)
    return order, p[order] / p[order].sum()


def chi_square(counts, expected):
    """In standard deviations of the statistic; impossible tokens must not have come at all."""
    possible = expected > 0
    assert not counts[~possible].any(), "a token of probability 0 was drawn"
    want = expected[possible] * counts.sum()
    freedom = max(int(possible.sum()) - 1, 1)
    return (((counts[possible] - want) ** 2 / want).sum() - freedom) / np.sqrt(2 * freedom)


def test_greedy_takes_the_first_of_equal_maxima():
    sampler = Sampler(Sampling())
    assert sampler.sample(np.array([1, 7, 3, 7], dtype=np.float32)) == 1
    assert sampler.sample(np.array([-np.inf, -5], dtype=np.float32)) == 1
    assert isinstance(sampler.sample(LOGITS), int)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"temperature": 1.0}, [0.05, 0.4, 0.1, 0.25, 0.2]),
        ({"temperature": 0.5}, [0.0025, 0.16, 0.01, 0.0625, 0.04]),
        ({"temperature": 2.0}, np.sqrt([0.05, 0.4, 0.1, 0.25, 0.2])),
        ({"temperature": 1.0, "top_k": 2}, [0, 0.4, 0, 0.25, 0]),
        ({"temperature": 1.0, "top_p": 0.6}, [0, 0.4, 0, 0.25, 0]),
        ({"temperature": 1.0, "top_p": 0.7}, [0, 0.4, 0, 0.25, 0.2]),
        ({"temperature": 1.0, "min_p": 0.45}, [0, 0.4, 0, 0.25, 0.2]),
        ({"temperature": 1.0, "min_p": 0.55}, [0, 0.4, 0, 0.25, 0]),
        # The nucleus is that of the 3 left by top-k: 0.4 + 0.25 is 76% of them, and only 65% of all.
        ({"temperature": 1.0, "top_k": 3, "top_p": 0.7}, [0, 0.4, 0, 0.25, 0]),
        # Temperature comes first: at 2 the greatest has 30%, at 1 it has 40% and would do alone.
        ({"temperature": 2.0, "top_p": 0.38}, [0, np.sqrt(0.4), 0, np.sqrt(0.25), 0]),
    ],
)
def test_distribution(options, expected):
    expected = np.asarray(expected) / np.sum(expected)
    assert chi_square(draws(Sampling(**options, seed=11)), expected) < LIMIT


def test_the_distribution_test_can_fail():
    wrong = np.array([0.08, 0.37, 0.1, 0.25, 0.2])
    assert chi_square(draws(Sampling(temperature=1.0, seed=11)), wrong) > LIMIT


@settings(max_examples=300, deadline=None, database=None)
@given(data=st.data())
def test_filters_are_their_definitions(data):
    size = data.draw(st.integers(1, 40))
    # Few distinct values, so that ties are common; multiples of 1/4 keep f32 sums of ties exact in f64.
    logits = np.array(data.draw(st.lists(st.integers(-12, 12), min_size=size, max_size=size)), dtype=np.float32) / 4
    sampling = Sampling(
        temperature=data.draw(st.sampled_from([0.25, 1.0, 3.0])),
        top_k=data.draw(st.integers(0, size + 2)),
        top_p=data.draw(st.sampled_from([0.013, 0.317, 0.771, 0.983, 1.0])),
        min_p=data.draw(st.sampled_from([0.0, 0.0137, 0.217, 0.731, 1.0])),
    )
    want_ids, want = slow_candidates(logits, sampling)
    ids, weights = Sampler(sampling)._candidates(logits, float(logits.max()))
    assert (list(range(size)) if ids is None else ids.tolist()) == want_ids
    np.testing.assert_allclose(weights / weights.sum(dtype=np.float64), want, rtol=2e-6)


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
def test_a_nucleus_of_many_tokens(top_p, scale):
    logits = (np.random.default_rng(5).standard_normal(20_011) * scale).astype(np.float32)
    ids, _ = Sampler(Sampling(temperature=1.0, top_p=top_p))._candidates(logits, float(logits.max()))
    p = np.exp(logits.astype(np.float64) - logits.max())
    p /= p.sum()
    kept, left = p[ids], np.delete(p, ids)
    assert kept.sum() >= top_p - 1e-7 and kept.sum() - kept.min() < top_p + 1e-7, "not the smallest such set"
    assert kept.min() >= left.max()


def test_a_nucleus_ends_with_the_token_that_reaches_top_p():
    logits = np.log(np.array([0.25, 0.5, 0.25], dtype=np.float32))
    ids, _ = Sampler(Sampling(temperature=1.0, top_p=0.5))._candidates(logits, float(logits.max()))
    assert ids.tolist() == [1]
    ids, _ = Sampler(Sampling(temperature=1.0, top_p=0.75))._candidates(logits, float(logits.max()))
    assert ids.tolist() == [0, 1], "of equal tokens the lower id"


def test_top_k_keeps_exactly_k_of_equal_tokens():
    logits = np.zeros(50, dtype=np.float32)
    logits[30] = 1
    ids, _ = Sampler(Sampling(temperature=1.0, top_k=4))._candidates(logits, 1.0)
    assert ids.tolist() == [0, 1, 2, 30]


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}, {"temperature": 1e-60}])
def test_the_narrowest_setting_is_greedy(options):
    assert draws(Sampling(**{"temperature": 1.0, "seed": 3, **options}), count=50).tolist() == [0, 50, 0, 0, 0]


def test_a_tiny_temperature_still_draws_among_equal_maxima():
    logits = np.array([0, 3, 1, 3], dtype=np.float32)
    counts = draws(Sampling(temperature=1e-60, seed=1), logits, count=200)
    assert counts[[0, 2]].tolist() == [0, 0] and counts[[1, 3]].min() > 50


def test_masked_tokens_never_come():
    logits = np.array([-np.inf, 0, -np.inf, 0, -np.inf], dtype=np.float32)
    for options in ({}, {"top_k": 4}, {"top_p": 0.9999}, {"temperature": 100.0}):
        counts = draws(Sampling(**{"temperature": 1.0, "seed": 1, **options}), logits, count=200)
        assert counts[[0, 2, 4]].tolist() == [0, 0, 0] and counts[[1, 3]].min() > 50


def test_large_logits_do_not_overflow():
    logits = np.array([3e38, 3e38, -3e38, 0], dtype=np.float32)
    counts = draws(Sampling(temperature=1.0, seed=1), logits, count=200)
    assert counts[[0, 1]].min() > 50 and counts[[2, 3]].tolist() == [0, 0]


@pytest.mark.parametrize("uniform", [0.0, 0.5, np.nextafter(1.0, 0.0), 1.0])
def test_a_draw_at_the_edges_has_weight(uniform):
    weights = np.array([0, 1, 0, 2, 0], dtype=np.float32)
    assert module._weighted_choice(None, weights, uniform) == (1 if uniform == 0 else 3)
    assert module._weighted_choice(np.array([5, 6, 7, 8, 9]), weights, uniform) == (6 if uniform == 0 else 8)


def test_the_same_seed_gives_the_same_tokens():
    def tokens(seed, stream=0):
        sampler = Sampler(Sampling(temperature=1.0, seed=seed), stream)
        return [sampler.sample(LOGITS) for _ in range(40)]

    assert tokens(7) == tokens(7)
    assert tokens(7) != tokens(8)
    assert tokens(7, 1) == tokens(7, 1) and tokens(7, 1) != tokens(7)
    assert tokens(None) != tokens(None)
    assert tokens(2**64 - 1)[:12] == tokens(2**64 - 1)[:12]


def test_recorded_tokens():
    sampler = Sampler(Sampling(temperature=1.0, seed=7))
    assert [sampler.sample(LOGITS) for _ in range(16)] == [0, 4, 1, 1, 1, 1, 3, 3, 1, 3, 3, 4, 3, 1, 0, 1]


@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}, {"top_k": 1}], ids=str)
def test_each_sample_draws_one_number(options):
    sampler, fresh = (Sampler(Sampling(temperature=1.0, seed=7, **options)) for _ in range(2))
    for _ in range(5):
        sampler.sample(LOGITS)
    assert sampler.uniform() == fresh.uniform(5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([0, np.nan, 9, 1], r"the model produced a NaN logit \(token 1 of 4\)"),
        ([0, np.inf, 9, 1], r"the model produced an infinite logit \(token 1 of 4\)"),
        ([-np.inf] * 4, r"the model produced only -inf logits"),
    ],
)
def test_broken_logits_are_refused(temperature, bad, message):
    with pytest.raises(HostError, match=message):
        Sampler(Sampling(temperature=temperature)).sample(np.array(bad, dtype=np.float32))


@pytest.mark.parametrize(
    ("option", "values", "expected"),
    [
        ("temperature", [-0.1, 100.5, np.nan, np.inf, True, "1"], "a number from 0 (greedy) to 100"),
        ("top_k", [-1, 2.0, True, "3", 2**31], "a whole number, 0 (all tokens) or more"),
        ("top_p", [0, 0.0, -0.1, 1.01, np.nan, None], "a number greater than 0 and at most 1 (all tokens)"),
        ("min_p", [-0.1, 1.01, np.nan, "0"], "a number from 0 (all tokens) to 1"),
        ("seed", [-1, 2**64, 1.5, False, "7"], "a whole number from 0 to 2^64 - 1, or none"),
    ],
)
def test_options_outside_their_range_are_refused(option, values, expected):
    for value in values:
        is_number = isinstance(value, float | int) and not isinstance(value, bool)
        is_of_its_type = is_number and (option in ("temperature", "top_p", "min_p") or isinstance(value, int))
        with pytest.raises(RequestError if is_of_its_type else TypeError) as error:
            Sampling(**{option: value})
        assert str(error.value) == f"{option} is {value!r}, expected {expected}"


def test_options_at_their_limits_are_taken():
    Sampling(temperature=100, top_k=2**31 - 1, top_p=1, min_p=1, seed=0)
    Sampling(temperature=0, top_k=0, top_p=1e-300, min_p=0, seed=2**64 - 1)

"""Sampling on the device: the tokens of `sample_rows`, for any mixture of options, ties and edges included."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxr.compiler.errors import HostError, RequestError
from mlxr.runtime.engine.sampling import Row, Sampled, Sampler, Sampling, sample_rows
from mlxr.runtime.engine.sampling.device_choice import DeviceChoice
from mlxr.runtime.engine.sampling.device_sampling import sample_on_device
from mlxr_tests.few import examples


class Fixed(Sampler):
    """A sampler whose random number is fixed."""

    number = 0.0

    def uniforms(self, position: int, count: int) -> np.ndarray:
        return np.full(count, self.number)


def on_device(logits: np.ndarray, rows: list[Row]) -> list[Sampled]:
    given_logits = mx.array(logits)
    samples = sample_on_device(given_logits, rows)
    assert samples.tokens.dtype == mx.int32 and samples.tokens.shape == (len(logits),)
    mx.eval(*samples.arrays)
    np.testing.assert_array_equal(np.array(given_logits), logits)
    return samples.read(np.array)


@st.composite
def samplings(draw: st.DrawFn, size: int) -> Sampling:
    optional: dict[str, Any] = {
        "top_k": st.integers(0, size + 2),
        "top_p": st.sampled_from([1e-300, 0.013, 0.317, 0.771, 0.983]),
        "min_p": st.sampled_from([0.0137, 0.217, 0.731, 1.0]),
        "typical_p": st.sampled_from([0.113, 0.571, 0.937]),
        "repetition_penalty": st.sampled_from([0.71, 1.37]),
        "repetition_range": st.sampled_from([1, 3]),
        "frequency_penalty": st.sampled_from([-0.67, 0.43]),
        "presence_penalty": st.sampled_from([-0.59, 0.31]),
        "dry_multiplier": st.just(0.83),
        "min_tokens": st.integers(0, 6),
        "logit_bias": st.dictionaries(st.integers(0, size - 1), st.sampled_from([-100.0, -1.13, 2.17]), max_size=3),
        "logprobs": st.integers(0, 4),
    }
    temperature = st.sampled_from([0.0, 1e-60, 0.25, 1.0, 3.0])
    return Sampling(**draw(st.fixed_dictionaries({"temperature": temperature}, optional=optional)), dry_breakers=[])


# The same examples each time: of others, a rare one has a number within rounding of a border.
@settings(max_examples=examples(80, 40), deadline=None, database=None, derandomize=True)
@given(data=st.data())
def test_it_chooses_the_tokens_of_sample_rows(data: st.DataObject) -> None:
    count, size = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 40))
    # Few distinct values, so that ties at the border of every filter are common.
    few = st.lists(st.integers(-12, 12), min_size=count * size, max_size=count * size)
    logits = np.array(data.draw(few), dtype=np.float32).reshape(count, size) / 4
    rows = []
    for i in range(count):
        tokens = data.draw(st.lists(st.integers(0, min(size, 5) - 1), max_size=8))
        sampler = Fixed(data.draw(samplings(size)), i, tokens, (0,))
        sampler.number = data.draw(st.sampled_from([0.0, 0.0713, 0.2114, 0.5231, 0.7717, 0.9391]))
        for token in tokens[::-1]:
            sampler.accept(token)
        mask = None
        if data.draw(st.booleans()):
            mask = np.full(2, data.draw(st.integers(1, 2**31 - 1)), dtype=np.int32)[: -(-size // 32)]
            mask[0] |= 1
        rows.append(Row(sampler, len(tokens), mask))
    for got, want in zip(on_device(logits, rows), sample_rows(logits, rows), strict=True):
        assert got.token == want.token
        assert got.logprob == pytest.approx(want.logprob, abs=1e-5)
        assert [number for _, number in got.top] == pytest.approx([number for _, number in want.top], abs=1e-5)


@pytest.mark.parametrize("options", [{}, {"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.01}, {"typical_p": 0.7}], ids=str)
def test_a_vocabulary_of_many_tokens(options: dict[str, float]) -> None:
    logits = (np.random.default_rng(5).standard_normal((100, 20_011)) * 3).astype(np.float32)
    rows = [Row(Sampler(Sampling(temperature=1.0, seed=1, **options), i), 0) for i in range(100)]
    same = sum(a.token == b.token for a, b in zip(on_device(logits, rows), sample_rows(logits, rows), strict=True))
    assert same >= 96, "a number within rounding of a border may choose the other token, and hardly any is"


@pytest.mark.parametrize("uniform", [0.0, 0.5, np.nextafter(1.0, 0.0)])
def test_a_draw_at_the_edges_has_weight(uniform: float) -> None:
    """The greatest double below 1 is 1 in f32: it must not reach beyond the last token that may come."""
    sampler = Fixed(Sampling(temperature=1.0))
    sampler.number = float(uniform)
    logits = np.array([[-np.inf, 0.0, -np.inf, np.log(2.0), -np.inf]], dtype=np.float32)
    assert on_device(logits, [Row(sampler, 0)]) == [Sampled(1 if uniform == 0 else 3)]
    asked = DeviceChoice([sampler]).asked([0], 3)[:, 0, 0].copy().view(np.float32)
    assert len(asked) == 3 and (asked < 1).all(), "a host that draws tokens itself finds none else"


@pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"top_p": 0.9999}, {"temperature": 100.0}], ids=str)
def test_tokens_without_probability_never_come(options: dict[str, float]) -> None:
    sampler = Sampler(Sampling(**{"temperature": 1.0, "seed": 1, **options}))
    logits = np.tile(np.array([-np.inf, 0, -np.inf, 0, -np.inf], dtype=np.float32), (200, 1))
    tokens = [sampled.token for sampled in on_device(logits, [Row(sampler, i) for i in range(200)])]
    counts = np.bincount(tokens, minlength=5)
    assert counts[[0, 2, 4]].tolist() == [0, 0, 0] and counts[[1, 3]].min() > 50


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_rows_have_an_error_and_the_others_have_tokens(temperature: float) -> None:
    """Until they are read, the next step has an id that exists."""
    rows = [[np.nan] * 4, [0, np.nan, 1, 2], [0, np.inf, 1, 2], [-np.inf] * 4, [-50, -50, 0, -50], [-np.inf, 0, 0, 0]]
    logits = np.array(rows, dtype=np.float32)
    sampler = Sampler(Sampling(temperature=temperature, seed=1))
    wanted = [Row(sampler, i) for i in range(5)] + [Row(sampler, 0, np.array([1], dtype=np.int32))]
    tokens = sample_on_device(mx.array(logits), wanted).tokens.tolist()
    assert all(0 <= token < 4 for token in tokens)
    sampled = on_device(logits, wanted)
    assert [type(row.error) for row in sampled] == [HostError] * 4 + [type(None), RequestError]
    assert [str(row.error) for row in sampled] == [str(row.error) for row in sample_rows(logits, wanted)]
    assert sampled[4].token == 2

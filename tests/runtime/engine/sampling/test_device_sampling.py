"""Sampling on the device: the tokens of the CPU's sampler for the same numbers, ties and edges included."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxr.runtime.engine.sampling import Sampler, Sampling
from mlxr.runtime.engine.sampling.device_sampling import sample_tokens


def on_both(logits: np.ndarray, sampling: Sampling) -> tuple[list[int], list[int]]:
    """The tokens of each row on the CPU and on the device, each row with its own stream."""
    streams = range(len(logits))
    want = [Sampler(sampling, stream).sample(row) for stream, row in zip(streams, logits, strict=True)]
    uniforms = [Sampler(sampling, stream).uniform() for stream in streams] if sampling.temperature else []
    got = sample_tokens(mx.array(logits), sampling, uniforms)
    assert got.dtype == mx.int32 and got.shape == (len(logits),)
    return got.tolist(), want


@settings(max_examples=400, deadline=None, database=None)
@given(data=st.data())
def test_it_draws_the_tokens_of_the_cpu_sampler(data: st.DataObject) -> None:
    rows, size = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 40))
    # Few distinct values, so that ties at the border of every filter are common.
    few = st.lists(st.integers(-12, 12), min_size=rows * size, max_size=rows * size)
    logits = np.array(data.draw(few), dtype=np.float32).reshape(rows, size) / 4
    sampling = Sampling(
        temperature=data.draw(st.sampled_from([0.0, 1e-60, 0.25, 1.0, 3.0])),
        top_k=data.draw(st.integers(0, size + 2)),
        top_p=data.draw(st.sampled_from([1e-300, 0.013, 0.317, 0.771, 0.983, 1.0])),
        min_p=data.draw(st.sampled_from([0.0, 0.0137, 0.217, 0.731, 1.0])),
        seed=data.draw(st.integers(0, 2**32)),
    )
    got, want = on_both(logits, sampling)
    assert got == want


@pytest.mark.parametrize("options", [{}, {"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.01}, {"top_k": 90, "top_p": 0.7}])
def test_a_vocabulary_of_many_tokens(options: dict[str, float]) -> None:
    logits = (np.random.default_rng(5).standard_normal((4, 20_011)) * 3).astype(np.float32)
    same = 0
    for seed in range(25):
        got, want = on_both(logits, Sampling(temperature=1.0, seed=seed, **options))  # type: ignore[arg-type]
        same += sum(a == b for a, b in zip(got, want, strict=True))
    assert same >= 96, "a number within rounding of a border may choose the other token, and hardly any is"


def test_rows_draw_by_their_own_numbers() -> None:
    logits = mx.zeros((4, 8))
    sampling = Sampling(temperature=1.0)
    assert sample_tokens(logits, sampling, [0.0, 0.3, 0.6, 0.99]).tolist() == [0, 2, 4, 7]


@pytest.mark.parametrize("uniform", [0.0, 0.5, np.nextafter(1.0, 0.0)])
def test_a_draw_at_the_edges_has_weight(uniform: float) -> None:
    """The greatest double below 1 is 1 in f32: it must not reach beyond the last token that may come."""
    logits = mx.array([[-np.inf, 0.0, -np.inf, np.log(2.0), -np.inf]])
    token = sample_tokens(logits, Sampling(temperature=1.0), [float(uniform)]).item()
    assert token == (1 if uniform == 0 else 3)


@pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"top_p": 0.9999}, {"temperature": 100.0}])
def test_masked_tokens_never_come(options: dict[str, float]) -> None:
    logits = mx.array([[-np.inf, 0, -np.inf, 0, -np.inf]] * 200)
    uniforms = np.random.default_rng(1).random(200).tolist()
    drawn = sample_tokens(logits, Sampling(**{"temperature": 1.0, **options}), uniforms)  # type: ignore[arg-type]
    counts = np.bincount(np.array(drawn), minlength=5)
    assert counts[[0, 2, 4]].tolist() == [0, 0, 0] and counts[[1, 3]].min() > 50


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_rows_give_some_token_and_leave_the_others_alone(temperature: float) -> None:
    """They are refused when they are read; until then the next step must have an id that exists."""
    rows = [[np.nan] * 4, [0, np.nan, 1, 2], [0, np.inf, 1, 2], [-np.inf] * 4, [-50, -50, 0, -50]]
    uniforms = [0.5] * 5 if temperature else []
    tokens = sample_tokens(mx.array(rows), Sampling(temperature=temperature), uniforms).tolist()
    assert all(0 <= token < 4 for token in tokens)
    assert tokens[4] == 2

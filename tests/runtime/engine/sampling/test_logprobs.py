"""Log probabilities: those of the logits as they come, in f64 by definition; the most probable tokens in order."""

from typing import Any

import numpy as np
import pytest

from mlxr.runtime.engine.sampling import Row, Sampler, Sampling, sample_rows
from mlxr.runtime.engine.sampling.logprobs import token_logprobs

RANDOM = np.random.default_rng(4)


def log_softmax(logits: Any) -> Any:
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("size", [3, 300, 20_011])
def test_they_are_those_of_the_definition(size: int) -> None:
    logits = (RANDOM.standard_normal((12, size)) * 3).astype(np.float32)
    logits[1] = np.round(logits[1])  # equal ones
    logits[2] = 1e-3 * np.arange(size) % 0.1
    tokens, counts = RANDOM.integers(0, size, 12).tolist(), ([0, 5, 5000, 2] * 3)
    want = log_softmax(logits)
    for row, token, count, (logprob, top) in zip(
        want, tokens, counts, token_logprobs(logits, tokens, counts), strict=True
    ):
        assert logprob == pytest.approx(row[token], abs=3e-6)
        order = sorted(range(size), key=lambda i: (-np.float32(row[i]), i))[:count]
        assert len(top) == min(count, size)
        assert [number for _, number in top] == pytest.approx(row[order], abs=3e-6)


def test_equal_tokens_come_by_id_and_impossible_ones_not_at_all() -> None:
    logits = np.array([[0, -np.inf, 2, 0, 2]], dtype=np.float32)
    ((_, top),) = token_logprobs(logits, [0], [9])
    assert [token for token, _ in top] == [2, 4, 0, 3]


def test_options_do_not_change_them() -> None:
    logits = RANDOM.standard_normal((3, 12)).astype(np.float32)
    options = [
        Sampling(logprobs=3),
        Sampling(logprobs=3, temperature=0.3, top_k=1, repetition_penalty=3.0, logit_bias={0: -100.0}),
        Sampling(),
    ]
    rows = [Row(Sampler(sampling, 0, [1, 2]), 0) for sampling in options]
    want = log_softmax(logits)
    for i, sampled in enumerate(sample_rows(logits, rows)[:2]):
        assert sampled.logprob == pytest.approx(want[i, sampled.token], abs=3e-6)
        assert dict(sampled.top) == pytest.approx({t: want[i, t] for t in np.argsort(-want[i])[:3].tolist()}, abs=3e-6)
    last = sample_rows(logits, rows)[2]
    assert (last.logprob, last.top, last.error) == (None, (), None)

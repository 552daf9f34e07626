"""Log probabilities of tokens, of answers and of prompts, by the logits as the model gives them.

So they do not depend on the options: vLLM calls them `raw_logprobs`, and that is its default.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mlxr.runtime.arrays.greatest import floor_of_top
from mlxr.runtime.engine.sampling.candidates import LOWEST, candidates
from mlxr.runtime.engine.sampling.filters import Floats, Indices, block_sums, relative_weights

_TOGETHER = 1 << 17
"""Rows with so many logits are read together: more do not fit into a core's cache."""


class TokenLogprobs(NamedTuple):
    """What the model thinks of a token.

    Attributes:
        logprob: the log probability of the token, base e.
        top: ids and log probabilities of the most probable tokens, the most probable first.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprobs(logits: Floats, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """Log probabilities of one token of each row, and of the row's most probable ones.

    Args:
        logits: [rows, vocab], f32; the greatest one of each row is finite.
        tokens: the token of each row.
        counts: how many of the most probable tokens to tell of, for each row; fewer where fewer have any probability.
    """
    logprobs: list[TokenLogprobs] = []
    step = max(1, _TOGETHER // logits.shape[1])
    for start in range(0, len(logits), step):
        chunk = slice(start, start + step)
        logprobs += _tell(logits[chunk], np.array(tokens[chunk]), np.array(counts[chunk]))
    return logprobs


def _tell(logits: Floats, tokens: Indices, counts: Indices) -> list[TokenLogprobs]:
    greatest = logits.max(axis=1, keepdims=True)
    weights = relative_weights(logits, greatest, np.ones_like(greatest))
    log_sums = greatest[:, 0] + np.log(block_sums(weights)[:, -1])
    logprobs = (logits[np.arange(len(logits)), tokens] - log_sums).tolist()
    tops: list[tuple[tuple[int, float], ...]] = [()] * len(logits)
    if counts.any():
        floor = np.maximum(floor_of_top(logits, np.maximum(counts, 1)[:, None]), LOWEST)
        rows, ids = candidates(logits, floor)
        for row, known in zip(rows.tolist(), ids, strict=True):
            tops[row] = _top(logits[row], known[known >= 0], counts[row], log_sums[row])
        for row in set(range(len(logits))) - set(rows.tolist()):
            tops[row] = _top(logits[row], np.flatnonzero(logits[row] >= LOWEST), counts[row], log_sums[row])
    return [TokenLogprobs(logprob, top) for logprob, top in zip(logprobs, tops, strict=True)]


def _top(logits: Floats, ids: Indices, count: int, log_sum: float) -> tuple[tuple[int, float], ...]:
    """The most probable ones of some ids, of equal ones the lower id first."""
    values = logits[ids]
    order = np.argsort(-values, kind="stable")[:count]
    return tuple(zip(ids[order].tolist(), (values[order] - log_sum).tolist(), strict=True))

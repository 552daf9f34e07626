"""Sampling on the device: one token from each row of logits, as lazy MLX ops, so that nobody waits for the logits.

The definitions, the order of filters and the random numbers are those of `mlxr.runtime.engine.sampling.sampler`. Sums
are f32 here and f64 there: a random number within rounding error of the border between two tokens may choose the other
one.

Greedy sampling is one op. Otherwise the ops pass over the row a few times; top-k and top-p sort it.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from mlxr.runtime.engine.sampling.options import Sampling
from mlxr.runtime.engine.sampling.sampler import MIN_TEMPERATURE

_BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))


def sample_tokens(logits: mx.array, sampling: Sampling, uniforms: Sequence[float]) -> mx.array:
    """Chooses a token of each row.

    Args:
        logits: [rows, vocab], f32; -inf for a token that must not come. A row with a NaN or +inf, or nothing but -inf,
            gives some id of the vocabulary.
        sampling: the options of all rows.
        uniforms: a random number in [0, 1) for each row, which does not depend on the logits; none when greedy.

    Returns:
        [rows], int32, lazy.
    """
    if sampling.temperature == 0:
        return _argmax(logits)
    assert len(uniforms) == len(logits), f"{len(uniforms)} numbers for {len(logits)} rows"
    greatest = mx.max(logits, axis=-1, keepdims=True)
    temperature = max(sampling.temperature, MIN_TEMPERATURE)
    weights = mx.exp((logits - greatest) / temperature)
    kept = weights > 0  # a parallel scan may round its sums unevenly: a token without weight must not be chosen
    if 0 < sampling.top_k < logits.shape[-1] or sampling.top_p < 1:
        kept &= _most_probable(logits, greatest, sampling, temperature)
    if sampling.min_p > 0:
        kept &= weights >= sampling.min_p
    sums = mx.where(kept, mx.cumsum(mx.where(kept, weights, 0), axis=-1), -1)
    # f32 may round a number up to 1, which would choose no token at all.
    numbers = np.minimum(np.array(uniforms, dtype=np.float32), _BELOW_ONE)[:, None]
    return _argmax(sums > mx.array(numbers) * mx.max(sums, axis=-1, keepdims=True))


def _most_probable(logits: mx.array, greatest: mx.array, sampling: Sampling, temperature: float) -> mx.array:
    """Which tokens top-k and then top-p keep, [rows, vocab]: the first ones by falling logit, then by rising id."""
    falling = -mx.sort(-logits, axis=-1)
    count = min(sampling.top_k or falling.shape[-1], falling.shape[-1])
    falling = falling[:, :count]
    last = mx.full((len(logits), 1), count - 1, dtype=mx.int32)
    if sampling.top_p < 1:
        sums = mx.cumsum(mx.exp((falling - greatest) / temperature), axis=-1)
        short = sums < sampling.top_p * sums[:, -1:]
        last = mx.minimum(mx.sum(short, axis=-1, keepdims=True), last)
    least = mx.take_along_axis(falling, last, axis=-1)
    above, equal = logits > least, logits == least
    room = last + 1 - mx.sum(above, axis=-1, keepdims=True)
    return above | (equal & (mx.cumsum(equal.astype(mx.int32), axis=-1) <= room))


def _argmax(values: mx.array) -> mx.array:
    """The first index of each row's maximum, [rows], int32; indices are u32 in MLX and fit."""
    return mx.argmax(values, axis=-1).view(mx.int32)

"""Sampling on the device: one token from each row of logits, as lazy MLX ops, so that nobody waits for the logits.

The definitions, the order and the random numbers are those of `sample_rows`. Sums are f32 here and f64 there: a random
number within rounding error of the border between two tokens may choose the other one.

Greedy sampling is one op. Otherwise the ops pass over the row a few times; top-k, top-p and typical-p sort it. Rows of
one batch may have different options: what one row needs is done for all, with numbers that change nothing for others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.sampling.adjustments import Adjustment, adjustments
from mlxr.runtime.engine.sampling.rows import NOTHING_ALLOWED, broken_logits
from mlxr.runtime.engine.sampling.sampler import Row, Sampled, Sampler

_BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))
_LEAST = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class DeviceSamples:
    """The tokens of some rows; everything is lazy.

    Attributes:
        tokens: [rows], int32; some id of the vocabulary where there is an error.
        logits: as the model gave them: [rows, vocab], f32.
        greatest: the greatest logit of each row as the model gave it, and after masks and penalties: [2, rows], f32.
        logprobs: of the rows that ask, in their order: that of the token, then those of the most probable tokens, most
            of which are for the row that asks for most: [asked, 1 + most], f32; None: no row asks.
        top_ids: ids of these most probable tokens: [asked, most], int32.
    """

    rows: Sequence[Row]
    tokens: mx.array
    logits: mx.array
    greatest: mx.array
    logprobs: mx.array | None = None
    top_ids: mx.array | None = None

    @property
    def arrays(self) -> list[mx.array]:
        """What `read` waits for, to start computing."""
        return [array for array in (self.tokens, self.greatest, self.logprobs, self.top_ids) if array is not None]

    def read(self, read: Callable[[mx.array], npt.NDArray[Any]], tokens: mx.array | None = None) -> list[Sampled]:
        """Waits for the tokens.

        Args:
            read: waits for an array.
            tokens: the array to read instead of `tokens`, a copy of it.

        Raises:
            HostError: the step failed; what is wrong with a single row is told with this row.
        """
        sampled = [Sampled(token) for token in read(self.tokens if tokens is None else tokens).tolist()]
        if self.logprobs is not None and self.top_ids is not None:
            asked = [i for i, row in enumerate(self.rows) if row.sampler.asks_logprobs]
            for i, numbers, ids in zip(asked, read(self.logprobs).tolist(), read(self.top_ids).tolist(), strict=True):
                count = self.rows[i].sampler.sampling.logprobs or 0
                finite = [(id_, number) for id_, number in zip(ids, numbers[1:], strict=True) if number > -np.inf]
                top = sorted(finite, key=lambda pair: (-pair[1], pair[0]))[:count]
                sampled[i] = Sampled(sampled[i].token, numbers[0], tuple(top))
        greatest = read(self.greatest)
        if not np.isfinite(greatest).all():
            logits = read(self.logits)
            for i in np.flatnonzero(~np.isfinite(greatest[1])).tolist():
                sampled[i] = Sampled(0, error=RequestError(NOTHING_ALLOWED))
            for i in np.flatnonzero(~np.isfinite(greatest[0])).tolist():
                sampled[i] = Sampled(0, error=broken_logits(logits[i]))
        return sampled


def sample_on_device(logits: mx.array, rows: Sequence[Row]) -> DeviceSamples:
    """Chooses a token for each row, lazily.

    Args:
        logits: [rows, vocab], f32; -inf for a token that must not come.
        rows: what belongs to each row. Where a sampler needs tokens, it has accepted all before `position`.
    """
    assert logits.ndim == 2 and len(logits) == len(rows), f"{len(rows)} rows for logits of shape {logits.shape}"
    adjusted = _adjusted(_masked(logits, rows), adjustments(rows, logits.shape[1]))
    first = mx.max(logits, axis=-1)
    greatest = first if adjusted is logits else mx.max(adjusted, axis=-1)
    tokens = _argmax(adjusted)
    is_greedy = [row.sampler.kind.greedy for row in rows]
    if not all(is_greedy):
        weights = _filtered(adjusted, greatest[:, None], [row.sampler for row in rows])
        uniforms = [0.0 if row.sampler.kind.greedy else row.sampler.uniform(row.position) for row in rows]
        tokens = mx.where(mx.array(is_greedy), tokens, _draw(weights, uniforms))
    asked = [i for i, row in enumerate(rows) if row.sampler.asks_logprobs]
    logprobs, top_ids = _logprobs(logits, tokens, rows, asked) if asked else (None, None)
    both = mx.broadcast_to(first, (2, len(rows))) if greatest is first else mx.stack([first, greatest])
    return DeviceSamples(rows, tokens, logits, both, logprobs, top_ids)


def _masked(logits: mx.array, rows: Sequence[Row]) -> mx.array:
    """The logits with -inf where a mask forbids the token."""
    if all(row.mask is None for row in rows):
        return logits
    everything = np.full(-(-logits.shape[1] // 32), -1, dtype=np.int32)
    words = mx.array(np.stack([everything if row.mask is None else row.mask for row in rows]).view(np.uint32))
    bits = (words[:, :, None] >> mx.arange(32, dtype=mx.uint32)) & 1
    return mx.where(bits.reshape(len(rows), -1)[:, : logits.shape[1]] == 1, logits, -mx.inf)


def _adjusted(logits: mx.array, changes: Sequence[Adjustment]) -> mx.array:
    """The logits after biases and penalties."""
    for change in changes:
        rows, ids = mx.array(change.rows.astype(np.int32)), mx.array(change.ids.astype(np.int32))
        factor, minus = mx.array(change.factor), mx.array(change.minus)
        old = logits[rows, ids]
        logits = mx.array(logits)  # another array object: the caller's is not changed
        logits[rows, ids] = mx.where(old > 0, old / factor, old * factor) - minus
    return logits


def _filtered(logits: mx.array, greatest: mx.array, samplers: Sequence[Sampler]) -> mx.array:
    """The weights of tokens that pass the filters, and 0 for others: [rows, vocab], f32."""
    numbers = np.array([sampler.filters for sampler in samplers], dtype=np.float64)
    temperature, min_p, _, typical_p, top_p = (mx.array(column[:, None].astype(np.float32)) for column in numbers.T)
    top_k = numbers[:, 2].astype(np.int64)
    size = logits.shape[1]
    weights = mx.exp((logits - greatest) / temperature)
    if any(sampler.kind.min_p for sampler in samplers):
        weights = mx.where(weights >= min_p, weights, 0)
    use_top_k, use_typical_p, use_top_p = (
        any(getattr(sampler.kind, name) for sampler in samplers) for name in ("top_k", "typical_p", "top_p")
    )
    counts = np.where(top_k > 0, np.minimum(top_k, size), size)
    count = mx.array(counts.astype(np.int32))[:, None]
    if not use_typical_p:
        return _first(weights, count, top_p) if use_top_k or use_top_p else weights
    if use_top_k:
        weights = _first(weights, count, mx.ones_like(top_p))
    weights = mx.where(_typical(weights, typical_p) | (typical_p >= 1), weights, 0)
    return _first(weights, mx.full(count.shape, size, dtype=mx.int32), top_p) if use_top_p else weights


def _first(weights: mx.array, count: mx.array, top_p: mx.array) -> mx.array:
    """Filters by top-k (`count`) and then by top-p: [rows, 1] each; 0 for tokens that do not pass."""
    falling = -mx.sort(-weights, axis=-1)
    sums = mx.cumsum(falling, axis=-1)
    short = mx.sum(sums < top_p * mx.take_along_axis(sums, count - 1, axis=-1), axis=-1, keepdims=True)
    count = mx.where(top_p < 1, mx.minimum(count, short.astype(mx.int32) + 1), count)
    least = mx.take_along_axis(falling, count - 1, axis=-1)
    above, equal = weights > least, weights == least
    room = count - mx.sum(above, axis=-1, keepdims=True).astype(mx.int32)
    return mx.where(above | (equal & (mx.cumsum(equal.astype(mx.int32), axis=-1) <= room)), weights, 0)


def _typical(weights: mx.array, typical_p: mx.array) -> mx.array:
    """Which tokens pass typical-p: [rows, vocab], bool."""
    logs = mx.log(mx.maximum(weights, _LEAST))
    total = mx.sum(weights, axis=-1, keepdims=True)
    distance = mx.abs(logs - mx.sum(weights * logs, axis=-1, keepdims=True) / total)
    distance = mx.where(weights > 0, distance, mx.inf)
    order = mx.argsort(distance, axis=-1)
    sums = mx.cumsum(mx.take_along_axis(weights, order, axis=-1), axis=-1)
    last = mx.minimum(mx.sum(sums < typical_p * total, axis=-1, keepdims=True).astype(mx.int32), weights.shape[1] - 1)
    limit = mx.take_along_axis(mx.take_along_axis(distance, order, axis=-1), last, axis=-1)
    nearer, equal = distance < limit, distance == limit
    room = last + 1 - mx.sum(nearer, axis=-1, keepdims=True).astype(mx.int32)
    return nearer | (equal & (mx.cumsum(equal.astype(mx.int32), axis=-1) <= room))


def _draw(weights: mx.array, uniforms: Sequence[float]) -> mx.array:
    """Chooses an index of each row, with the probability of its weight: [rows], int32."""
    # A parallel scan may round its sums unevenly: a token without weight must not be chosen.
    sums = mx.where(weights > 0, mx.cumsum(weights, axis=-1), -1)
    # f32 may round a number up to 1, which would choose no token at all.
    numbers = np.minimum(np.array(uniforms, dtype=np.float32), _BELOW_ONE)[:, None]
    return _argmax(sums > mx.array(numbers) * mx.max(sums, axis=-1, keepdims=True))


def _logprobs(logits: mx.array, tokens: mx.array, rows: Sequence[Row], asked: list[int]) -> tuple[mx.array, mx.array]:
    """`logprobs` and `top_ids` of `DeviceSamples`."""
    if len(asked) < len(rows):
        logits, tokens = logits[mx.array(asked)], tokens[mx.array(asked)]
    most = max(rows[i].sampler.sampling.logprobs or 0 for i in asked)
    most = min(most, logits.shape[1])
    ids = mx.concatenate([tokens[:, None], mx.argsort(-logits, axis=-1)[:, :most].astype(mx.int32)], axis=1)
    values = mx.take_along_axis(logits, ids, axis=-1) - mx.logsumexp(logits, axis=-1, keepdims=True)
    return values, ids[:, 1:]


def _argmax(values: mx.array) -> mx.array:
    """The first index of each row's maximum, [rows], int32; indices are u32 in MLX and fit."""
    return mx.argmax(values, axis=-1).view(mx.int32)

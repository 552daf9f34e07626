"""How rows choose tokens of their logits on the device, as lazy MLX ops: the same in each of the steps that they share.

Greedy choice is one op. Otherwise the ops pass over the row a few times; top-k, top-p and typical-p sort it. Rows of
one batch may have different options: what one row needs is done for all, with numbers that change nothing for others.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.runtime.engine.sampling.sampler import Sampler

_BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))
_MOST_EXACT = 2.0**24  # of whole numbers in f32; no vocabulary has more tokens
_LEAST = float(np.finfo(np.float32).tiny)

Send = Callable[[npt.NDArray[Any]], mx.array]
"""Makes an array on the device."""


class DeviceChoice:
    """The filters of some rows, on the device.

    Attributes:
        is_greedy: whether all rows take the token of the greatest logit.
    """

    def __init__(self, samplers: Sequence[Sampler], send: Send = mx.array) -> None:
        """Sends the filters' numbers to the device, unless all rows are greedy.

        Args:
            samplers: of the rows.
            send: makes an array on the device.
        """
        self._samplers, self._send = samplers, send
        kinds = [sampler.kind for sampler in samplers]
        self.is_greedy = all(kind.greedy for kind in kinds)
        if self.is_greedy:
            return
        self._use_min_p, self._use_top_k = any(kind.min_p for kind in kinds), any(kind.top_k for kind in kinds)
        self._use_typical_p, self._use_top_p = any(k.typical_p for k in kinds), any(k.top_p for k in kinds)
        numbers = [(*sampler.filters, kind.greedy) for sampler, kind in zip(samplers, kinds, strict=True)]
        by_filter = np.array(numbers, np.float32).T[:, :, None]
        by_filter[2] = np.minimum(by_filter[2], _MOST_EXACT)
        self._temperature, self._min_p, self._top_k, self._typical_p, self._top_p, greedy = send(by_filter.copy())
        self._takes_greatest = greedy[:, 0] > 0 if any(kind.greedy for kind in kinds) else None

    def uniforms(self, positions: Sequence[int], steps: int = 1) -> list[mx.array | None]:
        """The random numbers of steps, [rows, 1] each; None where no row needs any.

        Args:
            positions: which token of its answer each row chooses in the first step.
            steps: how many steps.
        """
        if self.is_greedy:
            return [None] * steps
        rows = list(zip(self._samplers, positions, strict=True))
        numbers = [
            [0.0 if sampler.kind.greedy else sampler.uniform(position + step) for sampler, position in rows]
            for step in range(steps)
        ]
        # f32 may round a number up to 1, which would choose no token at all.
        return list(self._send(np.minimum(np.array(numbers, np.float32), _BELOW_ONE)[:, :, None]))

    def tokens(self, logits: mx.array, greatest: mx.array, uniforms: mx.array | None) -> mx.array:
        """The chosen tokens: [rows], int32.

        Args:
            logits: [rows, vocab], f32; -inf for a token that must not come.
            greatest: of each row: [rows].
            uniforms: of the step.
        """
        tokens = argmax(logits)
        if uniforms is None:
            return tokens
        drawn = _draw(self._filtered(logits, greatest[:, None]), uniforms)
        return drawn if self._takes_greatest is None else mx.where(self._takes_greatest, tokens, drawn)

    def _filtered(self, logits: mx.array, greatest: mx.array) -> mx.array:
        """The weights of tokens that pass the filters, and 0 for others: [rows, vocab], f32."""
        size, top_p = logits.shape[1], self._top_p
        weights = mx.exp((logits - greatest) / self._temperature)
        if self._use_min_p:
            weights = mx.where(weights >= self._min_p, weights, 0)
        if not (self._use_top_k or self._use_typical_p or self._use_top_p):
            return weights
        asked = self._top_k.astype(mx.int32)
        count = mx.where(asked > 0, mx.minimum(asked, size), size)
        if not self._use_typical_p:
            return _first(weights, count, top_p)
        if self._use_top_k:
            weights = _first(weights, count, mx.ones_like(top_p))
        weights = mx.where(_typical(weights, self._typical_p) | (self._typical_p >= 1), weights, 0)
        return _first(weights, mx.full(count.shape, size, dtype=mx.int32), top_p) if self._use_top_p else weights


def argmax(values: mx.array) -> mx.array:
    """The first index of each row's maximum, [rows], int32; indices are u32 in MLX and fit."""
    return mx.argmax(values, axis=-1).view(mx.int32)


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


def _draw(weights: mx.array, uniforms: mx.array) -> mx.array:
    """Chooses an index of each row, with the probability of its weight: [rows], int32."""
    # A parallel scan may round its sums unevenly: a token without weight must not be chosen.
    sums = mx.where(weights > 0, mx.cumsum(weights, axis=-1), -1)
    return argmax(sums > uniforms * mx.max(sums, axis=-1, keepdims=True))

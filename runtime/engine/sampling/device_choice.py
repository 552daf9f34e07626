"""How rows choose tokens of their logits on the device, as lazy MLX ops: the same in each of the steps that they share.

Greedy choice is one op. Otherwise the ops pass over the row a few times; top-k, top-p and typical-p sort it. Rows of
one batch may have different options: what one row needs is done for all, with numbers that change nothing for others.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.runtime.engine.sampling.sampler import Kind, Sampler
from mlxr.runtime.hosts.likeliest import NUM_ASKED, Asked

_BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))
_MOST_EXACT = 1 << 24  # of whole numbers in f32; no vocabulary has more tokens
_LEAST = float(np.finfo(np.float32).tiny)

Send = Callable[[npt.NDArray[Any]], mx.array]
"""Makes an array on the device."""


class _Filters(NamedTuple):
    """The filters of rows, [rows, 1] f32 each, and which of them any row uses.

    Attributes:
        takes_greatest: which rows take the greatest logit, [rows] bool; None: none does.
    """

    any_of: Kind
    temperature: mx.array
    min_p: mx.array
    top_k: mx.array
    typical_p: mx.array
    top_p: mx.array
    takes_greatest: mx.array | None


class DeviceChoice:
    """The filters of some rows, on the device.

    Attributes:
        is_greedy: whether all rows take the token of the greatest logit.
        is_by_host: whether hosts that choose tokens themselves know how: `asked` says it, unless all are greedy.
    """

    def __init__(self, samplers: Sequence[Sampler], send: Send = mx.array) -> None:
        """Sends nothing yet.

        Args:
            samplers: of the rows.
            send: makes an array on the device.
        """
        self._samplers, self._send = samplers, send
        kinds = [sampler.kind for sampler in samplers]
        self.is_greedy = all(kind.greedy for kind in kinds)
        self.is_by_host = not any(kind.typical_p for kind in kinds)

    @cached_property
    def _filters(self) -> "_Filters":
        """The filters, on the device."""
        kinds = [sampler.kind for sampler in self._samplers]
        numbers = [(*sampler.filters, kind.greedy) for sampler, kind in zip(self._samplers, kinds, strict=True)]
        by_filter = np.array(numbers, np.float32).T[:, :, None]
        by_filter[2] = np.minimum(by_filter[2], _MOST_EXACT)
        temperature, min_p, top_k, typical_p, top_p, greedy = self._send(by_filter.copy())
        any_of = Kind(*(any(of) for of in zip(*kinds, strict=True)))
        takes_greatest = greedy[:, 0] > 0 if any_of.greedy else None
        return _Filters(any_of, temperature, min_p, top_k, typical_p, top_p, takes_greatest)

    @cached_property
    def _asked_always(self) -> Asked:
        """`asked` of a step, without random numbers: [rows, NUM_ASKED]."""
        found = np.zeros((len(self._samplers), NUM_ASKED), np.uint32)
        numbers = [sampler.filters for sampler in self._samplers]
        found[:, 1:4] = np.array([(t, min_p, top_p) for t, min_p, _, _, top_p in numbers], np.float32).view(np.uint32)
        found[:, 4] = [min(top_k, _MOST_EXACT) for _, _, top_k, _, _ in numbers]
        found[:, 5] = [sampler.kind.greedy for sampler in self._samplers]
        return found

    def asked(self, positions: Sequence[int], steps: int) -> Asked:
        """What a host must know to draw the tokens of steps itself.

        Args:
            positions: which token of its answer each row chooses in the first step.
            steps: how many steps.
        """
        rows = zip(self._samplers, positions, strict=True)
        numbers = [np.zeros(steps) if s.kind.greedy else s.uniforms(position, steps) for s, position in rows]
        found = np.empty((steps, *self._asked_always.shape), np.uint32)
        found[...] = self._asked_always
        found[:, :, 0] = np.minimum(np.array(numbers).astype(np.float32), _BELOW_ONE).view(np.uint32).T
        return found

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
        drawn, takes_greatest = _draw(self._filtered(logits, greatest[:, None]), uniforms), self._filters.takes_greatest
        return drawn if takes_greatest is None else mx.where(takes_greatest, tokens, drawn)

    def _filtered(self, logits: mx.array, greatest: mx.array) -> mx.array:
        """The weights of tokens that pass the filters, and 0 for others: [rows, vocab], f32."""
        size = logits.shape[1]
        any_of, temperature, min_p, top_k, typical_p, top_p, _ = self._filters
        weights = mx.exp((logits - greatest) / temperature)
        if any_of.min_p:
            weights = mx.where(weights >= min_p, weights, 0)
        if not (any_of.top_k or any_of.typical_p or any_of.top_p):
            return weights
        asked = top_k.astype(mx.int32)
        count = mx.where(asked > 0, mx.minimum(asked, size), size)
        if not any_of.typical_p:
            return _first(weights, count, top_p)
        if any_of.top_k:
            weights = _first(weights, count, mx.ones_like(top_p))
        weights = mx.where(_typical(weights, typical_p) | (typical_p >= 1), weights, 0)
        return _first(weights, mx.full(count.shape, size, dtype=mx.int32), top_p) if any_of.top_p else weights


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

"""Sampling on the device: one token from each row of logits, as lazy MLX ops, so that nobody waits for the logits.

The definitions, the order and the random numbers are those of `sample_rows`. Sums are f32 here and f64 there: a random
number within rounding error of the border between two tokens may choose the other one.

What of it is the same from step to step, if no row has a mask or a penalty, is a `DeviceChoice`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.sampling.adjustments import Adjustment, adjustments
from mlxr.runtime.engine.sampling.device_choice import DeviceChoice
from mlxr.runtime.engine.sampling.rows import NOTHING_ALLOWED, broken_logits
from mlxr.runtime.engine.sampling.sampler import Row, Sampled


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
    choice = DeviceChoice([row.sampler for row in rows])
    (uniforms,) = choice.uniforms([row.position for row in rows])
    tokens = choice.tokens(adjusted, greatest, uniforms)
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


def _logprobs(logits: mx.array, tokens: mx.array, rows: Sequence[Row], asked: list[int]) -> tuple[mx.array, mx.array]:
    """`logprobs` and `top_ids` of `DeviceSamples`."""
    if len(asked) < len(rows):
        logits, tokens = logits[mx.array(asked)], tokens[mx.array(asked)]
    most = max(rows[i].sampler.sampling.logprobs or 0 for i in asked)
    most = min(most, logits.shape[1])
    ids = mx.concatenate([tokens[:, None], mx.argsort(-logits, axis=-1)[:, :most].astype(mx.int32)], axis=1)
    values = mx.take_along_axis(logits, ids, axis=-1) - mx.logsumexp(logits, axis=-1, keepdims=True)
    return values, ids[:, 1:]

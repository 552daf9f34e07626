"""The filters: which tokens of a row may be drawn, by the options of the row's request.

Order: temperature, min-p, top-k, typical-p, top-p. Each filter takes the distribution that the one before it left,
renormalised. vLLM has this order of min-p, top-k and top-p; typical-p, which it lacks, stands where llama.cpp has it,
between top-k and top-p.

Definitions, for probabilities p; of equal tokens the lower id comes first:

* min-p: the tokens with p >= min_p * max(p);
* top-k: exactly the k most probable tokens;
* typical-p: the smallest set of tokens whose -log(p) is nearest to the entropy, whose sum reaches typical_p;
* top-p: the smallest set of most probable tokens whose sum reaches top_p, hence at least one.

Everything here is computed from weights: probabilities relative to the greatest one of the row, in f32. Weights of 0 at
the end of a row change no sum, so a row's result does not depend on how long its neighbours are.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlxr.runtime.engine.sampling.sampler import Sampler

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]
BLOCK = 128
"""Weights are summed in blocks of so many, and then the sums of the blocks."""
LEAST = np.finfo(np.float32).tiny
"""The least weight of a token that may come: less is not precise."""
_ZERO = np.float32(0)


class Filters(NamedTuple):
    """The options of rows that use the same filters: [rows, 1] each; None for a filter that they do not use."""

    temperature: Floats
    min_p: Floats | None
    top_k: Indices | None
    typical_p: Doubles | None
    top_p: Doubles | None

    @classmethod
    def of(cls, samplers: Sequence[Sampler]) -> "Filters":
        """The options of rows with these samplers, which all have the same `kind`."""
        numbers = np.array([sampler.filters for sampler in samplers])
        kind = samplers[0].kind
        return cls(
            numbers[:, 0:1].astype(np.float32),
            numbers[:, 1:2].astype(np.float32) if kind.min_p else None,
            numbers[:, 2:3].astype(np.intp) if kind.top_k else None,
            numbers[:, 3:4] if kind.typical_p else None,
            numbers[:, 4:5] if kind.top_p else None,
        )

    def take(self, rows: Indices) -> "Filters":
        """The options of some of the rows."""
        return Filters(
            self.temperature[rows],
            None if self.min_p is None else self.min_p[rows],
            None if self.top_k is None else self.top_k[rows],
            None if self.typical_p is None else self.typical_p[rows],
            None if self.top_p is None else self.top_p[rows],
        )


class Whole(NamedTuple):
    """What a filter needs to know of all weights of some rows: [rows, 1] each.

    Attributes:
        total: their sum.
        surprise: the mean of -log(weight); None where no filter needs it.
    """

    total: Doubles
    surprise: Doubles | None

    @classmethod
    def of(cls, weights: Floats, needs_surprise: bool) -> "Whole":
        """Of rows of all their weights."""
        total = block_sums(weights)[:, -1:]
        if not needs_surprise:
            return cls(total, None)
        return cls(total, -block_sums(weights * _log(weights))[:, -1:] / total)

    def take(self, rows: Indices) -> "Whole":
        """Of some of the rows."""
        return Whole(self.total[rows], None if self.surprise is None else self.surprise[rows])


def padded(size: int) -> int:
    """How many weights a row of `size` tokens has: whole blocks of them."""
    return -(-size // BLOCK) * BLOCK


def relative_weights(logits: Floats, greatest: Floats, temperature: Floats) -> Floats:
    """The tokens' probabilities relative to the greatest one, which is 1.

    Args:
        logits: [rows, n], f32.
        greatest: [rows, 1], f32.
        temperature: [rows, 1], f32, greater than 0.

    Returns:
        [rows, padded(n)], f32, with 0 where there is no token.
    """
    rows, size = logits.shape
    weights = np.empty((rows, padded(size)), dtype=np.float32)
    weights[:, size:] = 0
    used = weights[:, :size]
    with np.errstate(over="ignore"):  # beyond f32 is -inf, whose probability is 0 as it should be
        np.subtract(logits, greatest, out=used)
        np.divide(used, temperature, out=used)
    np.exp(used, out=used)
    return weights


def block_sums(weights: Floats) -> Doubles:
    """The sum of each block and all blocks before it: [rows, n] -> [rows, n / BLOCK], f64."""
    rows, size = weights.shape
    return np.asarray(weights.reshape(rows, size // BLOCK, BLOCK).sum(axis=2).cumsum(axis=1, dtype=np.float64))


def keep(weights: Floats, filters: Filters, whole: Whole | None) -> tuple[Floats, Bools]:
    """Filters candidates.

    Args:
        weights: of the candidates, [rows, n], by rising id; they have passed top-k (`candidates_of_top`).
        filters: of the rows.
        whole: what all weights of the rows are; None: there are no other candidates.

    Returns:
        The weights, with 0 for tokens that do not pass; and whether there were enough candidates, [rows].
    """
    if filters.min_p is not None:
        weights = np.where(weights >= filters.min_p, weights, _ZERO)
    if filters.typical_p is None:
        return _first(weights, filters.top_p, whole)
    weights, is_enough = _typical(weights, filters.typical_p, whole or Whole.of(weights, True))
    return _first(weights, filters.top_p, None)[0], is_enough


def _first(weights: Floats, top_p: Doubles | None, whole: Whole | None) -> tuple[Floats, Bools]:
    """Filters by top-p; the result is that of `keep`."""
    rows, size = weights.shape
    if top_p is None:
        return weights, np.ones(rows, dtype=np.bool_)
    falling = -np.sort(-weights, axis=1)
    reached = falling.cumsum(axis=1, dtype=np.float64)
    target = top_p * (reached[:, -1:] if whole is None else whole.total)
    is_enough = reached[:, -1] >= target[:, 0]
    last = np.minimum(size - 1, (reached < target).sum(axis=1))
    least = np.maximum(falling[np.arange(rows), last], LEAST)[:, None]
    kept = weights >= least
    room = last + 1 - kept.sum(axis=1)
    if (room < 0).any():  # there are equal ones, of which some are too many
        equal = weights == least
        kept &= ~equal | (equal.cumsum(axis=1) <= (room + equal.sum(axis=1))[:, None])
    return np.where(kept, weights, _ZERO), is_enough


def _typical(weights: Floats, typical_p: Doubles, whole: Whole) -> tuple[Floats, Bools]:
    """Filters by typical-p; the result is that of `keep`."""
    order = distance(weights, whole).argsort(axis=1, kind="stable")
    rows = np.arange(len(weights))[:, None]
    reached = weights[rows, order].cumsum(axis=1, dtype=np.float64)
    target = typical_p * whole.total
    kept = np.empty(weights.shape, dtype=np.bool_)
    kept[rows, order] = np.arange(weights.shape[1]) <= (reached < target).sum(axis=1, keepdims=True)
    return np.where(kept, weights, _ZERO), (reached[:, -1:] >= target)[:, 0]


def distance(weights: Floats, whole: Whole) -> Floats:
    """How far the surprise of each token is from the expected one, +inf for weights of 0: [rows, n], f32."""
    assert whole.surprise is not None, "asked for"
    return np.where(weights > 0, np.abs(_log(weights) + whole.surprise.astype(np.float32)), np.float32(np.inf))


def _log(weights: Floats) -> Floats:
    return np.log(np.maximum(weights, LEAST))

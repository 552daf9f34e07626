"""Chooses a token for each row of logits of a step, on the CPU.

The order is that of vLLM: log probabilities are those of the logits as they come; then the mask of allowed tokens, the
minimum length, the bias, the penalties; then the temperature, and the filters (`filters.py`).
"""

from collections import defaultdict
from collections.abc import Sequence
from math import isfinite

import numpy as np

from mlxr.compiler.errors import HostError, MlxrError, RequestError
from mlxr.runtime.arrays.greatest import floor_of_top
from mlxr.runtime.engine.sampling.adjustments import adjust, adjustments
from mlxr.runtime.engine.sampling.candidates import LOWEST, candidates, candidates_of_top, floor_of_min_p
from mlxr.runtime.engine.sampling.filters import (
    BLOCK,
    LEAST,
    Doubles,
    Filters,
    Floats,
    Indices,
    Whole,
    block_sums,
    distance,
    keep,
    relative_weights,
)
from mlxr.runtime.engine.sampling.logprobs import token_logprobs
from mlxr.runtime.engine.sampling.long_rows import keep_in_long_row
from mlxr.runtime.engine.sampling.sampler import Row, Sampled, allowed

NOTHING_ALLOWED = "the constraint allows only tokens to which the model gives no probability at all"
_TOGETHER = 1 << 17
"""Rows with so many logits are sampled together: more do not fit into a core's cache."""
_FEW = 512
"""So many tokens are tried where there is nothing but a top-p or a typical-p."""


def sample_rows(logits: Floats, rows: Sequence[Row], later: int = 0) -> list[Sampled]:
    """Chooses a token for each row. A row's result does not depend on the other rows.

    Args:
        logits: [rows, vocab], f32; -inf for a token that must not come. They are not changed.
        rows: what belongs to each row.
        later: by how much the position of each token is greater than its row says.
    """
    assert logits.ndim == 2 and len(logits) == len(rows), f"{len(rows)} rows for logits of shape {logits.shape}"
    if len(rows) == 1 and rows[0].sampler.takes_greatest and rows[0].mask is None:  # NumPy's calls are slow for one row
        best = int(logits.argmax())
        if isfinite(logits[0, best]):
            return [Sampled(best)]
    elif all(row.sampler.takes_greatest and row.mask is None for row in rows):
        tokens, greatest = _greatest(logits)
        if np.isfinite(greatest).all():
            return [Sampled(token) for token in tokens.tolist()]
    alike = defaultdict(list)
    for i, row in enumerate(rows):
        alike[row.sampler.kind, row.is_plain].append(i)
    sampled = [Sampled(0)] * len(rows)
    count = max(1, _TOGETHER // logits.shape[1])
    for (_, is_plain), group in alike.items():
        for start in range(0, len(group), count):
            chunk = group[start : start + count]
            is_range = chunk[-1] - chunk[0] == len(chunk) - 1  # then nothing is copied
            part = logits[chunk[0] : chunk[-1] + 1] if is_range else logits[chunk]
            for i, token in zip(chunk, _sample_alike(part, [rows[i] for i in chunk], is_plain, later), strict=True):
                sampled[i] = token
    asked = [i for i, row in enumerate(rows) if row.sampler.asks_logprobs and sampled[i].error is None]
    if asked:
        logprobs = token_logprobs(
            logits if len(asked) == len(rows) else logits[asked],
            [sampled[i].token for i in asked],
            [rows[i].sampler.sampling.logprobs or 0 for i in asked],
        )
        for i, (logprob, top) in zip(asked, logprobs, strict=True):
            sampled[i] = Sampled(sampled[i].token, logprob, top)
    return sampled


def _sample_alike(logits: Floats, rows: Sequence[Row], is_plain: bool, later: int) -> list[Sampled]:
    """Chooses a token for each row; all rows have the same kind of options."""
    errors: dict[int, MlxrError] = {}
    tokens, greatest = _greatest(logits)
    if not np.isfinite(greatest).all():
        errors = {i: broken_logits(logits[i]) for i in _broken_rows(greatest)}
        logits, greatest = logits.copy(), greatest.copy()
        logits[list(errors)] = greatest[list(errors)] = 0
    adjusted = logits
    if not is_plain:
        adjusted = _adjusted(logits, rows, later)
        tokens, greatest = _greatest(adjusted)
        for i in _broken_rows(greatest):
            errors[i] = RequestError(NOTHING_ALLOWED)
            adjusted[i] = greatest[i] = 0
    if not rows[0].sampler.kind.greedy:
        uniforms = np.array([[row.sampler.uniform(row.position + later)] for row in rows])
        tokens = _draw(adjusted, greatest, Filters.of([row.sampler for row in rows]), uniforms)
    sampled = [Sampled(token) for token in tokens.tolist()]
    for i, error in errors.items():
        sampled[i] = Sampled(0, error=error)
    return sampled


def _greatest(logits: Floats) -> tuple[Indices, Floats]:
    """The first greatest logit of each row, or its first NaN: its id, [rows], and itself, [rows, 1]."""
    tokens = logits.argmax(axis=1)
    return tokens, logits[np.arange(len(logits)), tokens][:, None]


def _broken_rows(greatest: Floats) -> list[int]:
    return [int(i) for i in np.flatnonzero(~np.isfinite(greatest))]


def broken_logits(logits: Floats) -> HostError:
    """The error for a row of logits, [vocab], whose greatest one is not a finite number."""
    token = int(logits.argmax())
    return broken_logit(float(logits[token]), token, logits.size)


def broken_logit(greatest: float, token: int, size: int) -> HostError:
    """The same, where only the greatest of so many logits is known, and whose it is."""
    what = {np.inf: "an infinite logit", -np.inf: "only -inf logits"}.get(greatest, "a NaN logit")
    return HostError(
        f"the model produced {what} (token {token} of {size}); the weights do not fit the artifact, "
        "or its activations overflow (try --activations f32, or activation_dtype f32 in the spec)"
    )


def _adjusted(logits: Floats, rows: Sequence[Row], later: int) -> Floats:
    """The logits after masks, biases and penalties."""
    logits = logits.copy()
    for i, row in enumerate(rows):
        if row.mask is not None:
            np.copyto(logits[i], -np.inf, where=~allowed(row.mask, logits.shape[1]))
    adjust(logits, adjustments(rows, logits.shape[1], later))
    return logits


def _draw(logits: Floats, greatest: Floats, filters: Filters, uniforms: Doubles) -> Indices:
    """Draws a token of each row, whose greatest logit is finite."""
    temperature, min_p, top_k, typical_p, top_p = filters
    if top_k is not None:
        every, filters = np.arange(len(logits)), filters._replace(top_k=None)
        return _draw_among(every, candidates_of_top(logits, top_k), logits, greatest, filters, uniforms)
    tokens = np.full(len(logits), -1)
    if min_p is not None:
        rows, ids = candidates(logits, floor_of_min_p(greatest, filters))
        if len(rows):
            tokens[rows] = _draw_among(rows, ids, logits, greatest, filters.take(rows), uniforms)
    else:
        weights = relative_weights(logits, greatest, temperature)
        if typical_p is None and top_p is None:
            return draw(weights, uniforms)
        whole = Whole.of(weights, typical_p is not None)
        values, least = (weights, LEAST) if typical_p is None else (-distance(weights, whole), LOWEST)
        floor = np.maximum(floor_of_top(values, np.full((len(logits), 1), _FEW)), least)
        rows, ids = candidates(values, floor)
        if len(rows):
            values = np.where(ids < 0, np.float32(0), weights[rows[:, None], ids])
            kept, is_enough = keep(values, filters.take(rows), whole.take(rows))
            chosen = ids[np.arange(len(rows)), draw(kept, uniforms[rows])]
            tokens[rows] = np.where(is_enough, chosen, -1)
    for row in np.flatnonzero(tokens < 0):  # nearly any token may pass
        only = np.array([row])
        weights = relative_weights(logits[only], greatest[only], temperature[only])
        tokens[only] = draw(keep_in_long_row(weights, filters.take(only)), uniforms[only])
    return tokens


def _draw_among(
    rows: Indices, ids: Indices, logits: Floats, greatest: Floats, filters: Filters, uniforms: Doubles
) -> Indices:
    """Draws tokens of some rows, which have no other candidates: rows and ids as `candidates` gives them."""
    values = np.where(ids < 0, np.float32(-np.inf), logits[rows[:, None], ids])
    kept, _ = keep(relative_weights(values, greatest[rows], filters.temperature), filters, None)
    chosen: Indices = ids[np.arange(len(rows)), draw(kept, uniforms[rows])]
    return chosen


def draw(weights: Floats, uniforms: Doubles) -> Indices:
    """Draws an index of each row, with the probability of its weight: where a random number falls in the sum of all.

    Args:
        weights: [rows, n], f32, not negative, at least one positive; n is a multiple of `BLOCK`.
        uniforms: [rows, 1], f64, in [0, 1).

    Returns:
        [rows], intp.
    """
    sums = block_sums(weights)
    target = uniforms * sums[:, -1:]
    if weights.shape[1] == BLOCK:
        return _first_beyond(weights.cumsum(axis=1, dtype=np.float64), target)
    block = _first_beyond(sums, target)
    rows = np.arange(len(weights))
    blocks = weights.reshape(len(weights), -1, BLOCK)
    before = np.where(block > 0, sums[rows, block - 1], 0)
    inner = blocks[rows, block].cumsum(axis=1, dtype=np.float64)
    return block * BLOCK + _first_beyond(inner, target - before[:, None])


def _first_beyond(sums: Doubles, target: Doubles) -> Indices:
    """The first place whose sum is greater than the target; where rounding leaves none, the last with a weight."""
    below_all = np.nextafter(sums[:, -1:], 0)
    return np.asarray((sums > np.minimum(target, below_all)).argmax(axis=1))

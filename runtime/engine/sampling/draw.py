"""Draws a token of each row with one random number: where it falls in the sum of the weights, by rising id."""

import numpy as np

from mlxr.runtime.engine.sampling.filters import BLOCK, Doubles, Floats, Indices, block_sums


def draw(weights: Floats, uniforms: Doubles) -> Indices:
    """Chooses an index of each row, with the probability of its weight.

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

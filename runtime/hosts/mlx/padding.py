"""Fills a step of prompts up to a size that has been seen before.

GPU libraries prepare each shape that they meet for the first time (cuBLAS takes milliseconds for it, a trace of MLX's
tens of them), and prompts come in every length. So a step has one of few numbers of tokens: those added stand in no
sequence, write no slot, and nobody reads what is made of them.
"""

from dataclasses import replace

import numpy as np

from mlxr.compiler.artifact import Plan
from mlxr.runtime.hosts.batch import Batch

NO_SLOT = -1
"""The slot of a token whose keys and values are not kept."""


def padded_batch(batch: Batch, plan: Plan) -> Batch:
    """The batch with tokens added, of which its own come first; itself if it has such a size, or its ids are lazy.

    Tiles become as many as any batch of so many tokens and sequences has. Those that are added say (-1 - n, first
    token): the attention's result of n tokens, of all tiles together the added ones, is 0.
    """
    count = batch.num_tokens
    size = plan.padded_tokens(count)
    if not plan.padded_sizes or not isinstance(batch.tokens, np.ndarray):
        return batch
    more, tile = size - count, batch.query_tile
    tiles = -(-size // tile) + batch.num_seqs - batch.num_tiles
    starts = count + tile * np.arange(tiles)
    added = np.stack([-1 - np.clip(size - starts, 0, tile), np.minimum(starts, size)], axis=1)
    return replace(
        batch,
        tokens=_more(batch.tokens, more, 0),
        positions=_more(batch.positions, more, 0),
        slots=_more(batch.slots, more, NO_SLOT),
        query_tiles=np.concatenate([batch.query_tiles, added]).astype(np.int32),
    )


def _more(numbers: np.ndarray, count: int, value: int) -> np.ndarray:
    return np.concatenate([numbers, np.full(count, value, np.int32)])

"""Rows in an adapter's low rank, made wide again."""

import mlx.core as mx


def lifted(low: mx.array, lift: mx.array, ids: mx.array, features: int) -> mx.array:
    """What each token's adapter adds: [tokens, features], zeros for tokens without one.

    Args:
        low: [tokens, rank].
        lift: [slots * rank * features], each adapter's matrix [rank, features].
        ids: [tokens], each token's adapter, or -1.
        features: columns of the result.
    """
    rank = low.shape[1]
    every = mx.einsum("tr,srf->tsf", low, lift.reshape(-1, rank, features))
    own = mx.take_along_axis(every, mx.maximum(ids, 0)[:, None, None], axis=1)[:, 0]
    return mx.where((ids < 0)[:, None], 0.0, own)

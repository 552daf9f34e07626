"""What all ranks give, at all ranks: for a few bytes, while they load."""

from collections.abc import Callable

import mlx.core as mx
import numpy as np

Gather = Callable[[bytes], list[bytes]]
"""A collective that all ranks call with equally many bytes; it returns those of each rank, in order."""


def gather_bytes(group: "mx.distributed.Group") -> Gather:
    """The collective of a group.

    Args:
        group: of all ranks.
    """

    def gather(data: bytes) -> list[bytes]:
        own = mx.array(np.frombuffer(data, np.uint8).astype(np.int32)[None])
        rows = np.array(mx.distributed.all_gather(own, group=group, stream=mx.cpu))
        return [row.astype(np.uint8).tobytes() for row in rows]

    return gather

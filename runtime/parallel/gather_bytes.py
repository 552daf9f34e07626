"""What all ranks give, at all ranks: for a few bytes, while they load."""

from collections.abc import Callable

import mlx.core as mx
import numpy as np

from mlxr.compiler.errors import HostError

Gather = Callable[[bytes], list[bytes]]
"""A collective that all ranks call with equally many bytes; it returns those of each rank, in order. A `HostError` says
that a rank was lost."""


def gather_bytes(group: "mx.distributed.Group") -> Gather:
    """The collective of a group.

    Args:
        group: of all ranks.
    """

    def gather(data: bytes) -> list[bytes]:
        own = mx.array(np.frombuffer(data, np.uint8).astype(np.int32)[None])
        try:
            rows = mx.distributed.all_gather(own, group=group, stream=mx.cpu)
            mx.eval(rows)
        except RuntimeError as error:
            raise HostError(f"rank {group.rank()} lost another rank: {error}") from error
        return [row.astype(np.uint8).tobytes() for row in np.array(rows)]

    return gather

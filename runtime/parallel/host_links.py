"""The links of a rank in the form that hosts take."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from mlxr.runtime.hosts.collectives import Floats
from mlxr.runtime.parallel.links import Links


class HostLinks:
    """`Collectives` over `Links`."""

    def __init__(self, links: Links, bounds: Sequence[int]) -> None:
        """Takes over links.

        Args:
            links: of this rank.
            bounds: see `RankPlan.result_bounds`.
        """
        self._links, self._bounds = links, tuple(bounds)

    def all_sum(self, x: Floats, out: Floats) -> None:
        """See `BlockingCollectives`."""
        self._links.all_sum(x, out)

    def send(self, x: Floats) -> None:
        """See `BlockingCollectives`."""
        self._links.send(x)

    def receive(self, out: Floats) -> None:
        """See `BlockingCollectives`."""
        self._links.receive(out)

    def gather(self, x: Floats | None, bounds: Sequence[int], out: Floats) -> None:
        """See `BlockingCollectives`."""
        if x is None and self._links.place.in_last_stage:
            x = np.zeros((len(out), 0), np.float32)  # of a result that only the first rank of the stage gives
        self._links.gather(x, tuple(bounds), out if self._links.place.rank == 0 else None)

    @property
    def traceable(self) -> bool:
        """See `LazyCollectives`. Between stages, rows are moved, or put in order, when the methods are called."""
        return self._links.place.pipeline == 1

    @property
    def stays_on_gpu(self) -> bool:
        """See `LazyCollectives`."""
        return self._links.stays_on_gpu

    def all_sum_lazily(self, x: mx.array) -> mx.array:
        """See `LazyCollectives`."""
        return self._links.all_sum_lazy(x)

    def send_lazily(self, x: mx.array) -> mx.array:
        """See `LazyCollectives`."""
        return self._links.send_lazy(x)

    def receive_lazily(self, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        """See `LazyCollectives`."""
        return self._links.receive_lazy(shape, dtype)

    def gather_lazily(self, x: mx.array | None, shape: tuple[int, int]) -> mx.array:
        """See `LazyCollectives`. Ranks that have nothing and get nothing return zeros."""
        if x is None and self._links.place.in_last_stage:
            x = mx.zeros((shape[0], 0))
        result = self._links.gather_lazy(x, self._bounds, shape[0], mx.float32)
        return mx.zeros(shape) if result is None else result

"""The exchange of a process whose sums go through memory that the cards of its stage see."""

from collections.abc import Callable

import mlx.core as mx

from mlxr.compiler.artifact import LONGEST_BYTES
from mlxr.runtime.hosts.cuda.parallel.peer_sums import PeerSums
from mlxr.runtime.hosts.exchange import LazyExchange


class PeerExchange:
    """`LazyExchange` whose sums are one launch each."""

    def __init__(self, others: LazyExchange, sums: PeerSums, count: Callable[[str, object], None]) -> None:
        """Takes over what else a process exchanges.

        Args:
            others: what it was given.
            sums: over its stage.
            count: called at each launch with the kernel's name and a detail.
        """
        self._others, self._sums, self._count = others, sums, count
        self.size, self.index, self.is_line = others.size, others.index, others.is_line
        self._latest: mx.array | None = None

    def begin(self) -> None:
        """Begins a step, a part of one, or a trace: none of the sums before are part of it."""
        self._latest = None

    @property
    def traceable(self) -> bool:
        """See `LazyExchange`."""
        return self._others.traceable

    @property
    def stays_on_gpu(self) -> bool:
        """See `LazyExchange`."""
        return True

    def all_sum_lazily(self, x: mx.array) -> mx.array:
        """See `LazyExchange`. Each sum binds the one before, so that all processes launch them in the same order."""
        if x.size == 0 or (x.nbytes > LONGEST_BYTES and self._others.stays_on_gpu):
            return self._others.all_sum_lazily(x)
        self._latest = self._sums.sum(x, self._latest)
        self._count(self._sums.name(x.dtype), x.shape)
        return self._latest

    def send_lazily(self, x: mx.array) -> mx.array:
        """See `LazyExchange`."""
        return self._others.send_lazily(x)

    def receive_lazily(self, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        """See `LazyExchange`."""
        return self._others.receive_lazily(shape, dtype)

    def gather_result_lazily(self, x: mx.array | None, rows: int, tops: int) -> mx.array:
        """See `LazyExchange`."""
        return self._others.gather_result_lazily(x, rows, tops)

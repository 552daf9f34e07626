"""What the host of one rank exchanges rows through: the collectives of the ranks, and where this one stands."""

import mlx.core as mx

from mlxr.compiler.artifact import RankPlan
from mlxr.runtime.hosts.exchange import Floats, Wires
from mlxr.runtime.parallel.collectives import Collectives
from mlxr.runtime.parallel.gather_result import gather_result
from mlxr.runtime.parallel.gather_result_lazily import gather_result_lazily


class RankExchange:
    """`Exchange` of a rank.

    Attributes:
        size: see `Exchange`.
        index: likewise.
        is_line: likewise.
    """

    def __init__(self, collectives: Collectives, rank: RankPlan) -> None:
        """Puts both together.

        Args:
            collectives: of the ranks.
            rank: this one.
        """
        self._rank, self._collectives = rank, collectives
        self.size, self.index, self.is_line = rank.tensor, rank.tensor_rank, rank.pipeline > 1

    @property
    def name(self) -> int:
        """See `Exchange`."""
        return self._rank.rank

    @property
    def traceable(self) -> bool:
        """See `Exchange`."""
        return self._collectives.traceable

    @property
    def stays_on_gpu(self) -> bool:
        """See `Exchange`."""
        return self._collectives.stays_on_gpu

    @property
    def result_columns(self) -> int:
        """See `Exchange`."""
        return self._rank.result_bounds[-1]

    def wires(self, shared_bytes: int) -> Wires | None:
        """See `Exchange`."""
        return self._collectives.wires(shared_bytes)

    def all_sum(self, x: Floats, out: Floats) -> None:
        """See `Exchange`."""
        self._collectives.all_sum(x, out)

    def send(self, x: Floats) -> None:
        """See `Exchange`."""
        self._collectives.send(x)

    def receive(self, out: Floats) -> None:
        """See `Exchange`."""
        self._collectives.receive(out)

    def all_sum_lazily(self, x: mx.array) -> mx.array:
        """See `Exchange`."""
        return self._collectives.all_sum_lazily(x)

    def send_lazily(self, x: mx.array) -> mx.array:
        """See `Exchange`."""
        return self._collectives.send_lazily(x)

    def receive_lazily(self, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        """See `Exchange`."""
        return self._collectives.receive_lazily(shape, dtype)

    def gather_result(self, x: Floats | None, out: Floats, tops: int) -> None:
        """See `Exchange.gather_result`."""
        gather_result(self._collectives, self._rank, x, out, tops)

    def gather_result_lazily(self, x: mx.array | None, rows: int, tops: int) -> mx.array:
        """See `Exchange.gather_result_lazily`."""
        return gather_result_lazily(self._collectives, self._rank, x, rows, tops)

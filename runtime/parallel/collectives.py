"""What the ranks of a model do together in the middle of a step."""

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx

from mlxr.runtime.hosts.exchange import Floats, Wires


class Collectives(Protocol):
    """What ranks do together, see `Links`. All call the same methods in the same order."""

    @property
    def stays_on_gpu(self) -> bool:
        """See `Exchange.stays_on_gpu`."""

    @property
    def traceable(self) -> bool:
        """See `Exchange.traceable`."""

    def wires(self, shared_bytes: int) -> Wires | None:
        """See `Exchange.wires`."""

    def all_sum(self, x: Floats, out: Floats) -> None:
        """See `Exchange.all_sum`."""

    def send(self, x: Floats) -> None:
        """See `Exchange.send`."""

    def receive(self, out: Floats) -> None:
        """See `Exchange.receive`."""

    def gather(self, x: Floats | None, bounds: Sequence[int], out: Floats) -> None:
        """Writes to out at rank 0, [rows, bounds[-1]], the columns of the ranks of the last stage.

        Args:
            x: this rank's columns, [rows, columns]; None: it has none.
            bounds: tensor rank t of the last stage has columns [bounds[t], bounds[t + 1]).
            out: at other ranks, memory to work in.
        """

    def all_sum_lazily(self, x: mx.array) -> mx.array:
        """See `Exchange.all_sum_lazily`."""

    def send_lazily(self, x: mx.array) -> mx.array:
        """See `Exchange.send_lazily`."""

    def receive_lazily(self, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        """See `Exchange.receive_lazily`."""

    def gather_lazily(self, x: mx.array | None, bounds: Sequence[int], rows: int) -> mx.array:
        """At rank 0, [rows, bounds[-1]], the columns of the ranks of the last stage; elsewhere what depends on them.

        Args:
            x: this rank's columns, [rows, columns], f32; None: it has none.
            bounds: as for `gather`; at least one column.
            rows: at least one.
        """

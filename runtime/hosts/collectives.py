"""What hosts need to run one rank's part of a model: exchanges of rows with the other ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
EXACT_IDS = 1 << 24
"""f32 has all whole numbers below this one, so that a sum can carry them."""


@dataclass(frozen=True)
class Wires:
    """Connections to other ranks that a program uses by itself in the middle of a step.

    Attributes:
        sockets: connected to each rank of this stage; -1: this rank itself.
        previous, next: connected to a rank of the stage before, and of the next one; -1: there is none.
        ranks: at the other end of each socket.
        memory: addresses at which this process has the memory of each rank of its stage; none: they do not share it.
    """

    sockets: tuple[int, ...]
    previous: int
    next: int
    ranks: Mapping[int, int]
    memory: tuple[int, ...] = ()


class BlockingCollectives(Protocol):
    """What a rank exchanges with others. Each call waits until its own part is done."""

    def wires(self, shared_bytes: int) -> Wires | None:
        """Connects the ranks for programs that exchange rows by themselves; all ranks call it at the same time.

        Args:
            shared_bytes: memory of this rank that others should see, if they are on the same machine.

        Returns:
            None: they cannot be connected, and programs call the methods below.
        """

    def all_sum(self, x: Floats, out: Floats) -> None:
        """Writes to out, like x, the sum of all x over the ranks of the stage, with the same bits at each."""

    def send(self, x: Floats) -> None:
        """Sends rows to the next stage."""

    def receive(self, out: Floats) -> None:
        """Receives rows of the stage before."""

    def gather(self, x: Floats | None, bounds: Sequence[int], out: Floats) -> None:
        """Writes to out at rank 0, [rows, bounds[-1]], the columns of the ranks of the last stage.

        Args:
            x: this rank's columns, [rows, columns]; None: it has none.
            bounds: tensor rank t of the last stage has columns [bounds[t], bounds[t + 1]).
            out: at other ranks, memory to work in.
        """


class LazyCollectives(Protocol):
    """The same for steps that are lazy MLX graphs. Every rank makes the same calls in the same order."""

    @property
    def traceable(self) -> bool:
        """Whether MLX may compile a step with them; not where some wait for the other side when they are called."""

    @property
    def stays_on_gpu(self) -> bool:
        """Whether sums never pass through the CPU."""

    def all_sum_lazily(self, x: mx.array) -> mx.array:
        """The sum of all x over the ranks of the stage, like x."""

    def send_lazily(self, x: mx.array) -> mx.array:
        """x; it is sent to the next stage when this is computed."""

    def receive_lazily(self, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        """Rows of the stage before."""

    def gather_lazily(self, x: mx.array | None, bounds: Sequence[int], rows: int) -> mx.array:
        """At rank 0, [rows, bounds[-1]], the columns of the ranks of the last stage; elsewhere what hangs on them.

        Args:
            x: this rank's columns, [rows, columns], f32; None: it has none.
            bounds: as for `gather`; at least one column.
            rows: at least one.
        """


class Collectives(BlockingCollectives, LazyCollectives, Protocol):
    """What a host is given; it uses one of the two."""

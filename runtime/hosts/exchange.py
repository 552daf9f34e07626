"""What a host needs to run a part of a model: rows that come from other processes, and rows that go to them.

Such processes form stages, of which each has some of the layers; those of a stage share each layer. How they find each
other, and who they are, a host does not know.
"""

from collections.abc import Mapping
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
    """Connections to other processes that a program uses by itself in the middle of a step.

    Attributes:
        sockets: connected to each process of this stage; -1: this process itself.
        previous, next: connected to a process of the stage before, and of the next one; -1: there is none.
        names: by numbers, of those at the other end of each socket.
        memory: addresses at which this process has the memory of each one of its stage; none: they do not share it.
    """

    sockets: tuple[int, ...]
    previous: int
    next: int
    names: Mapping[int, int]
    memory: tuple[int, ...] = ()


class Shared(Protocol):
    """What both kinds of exchange say.

    Attributes:
        size: how many processes this stage has.
        index: which of them this one is.
        is_line: whether there are several stages.
    """

    size: int
    index: int
    is_line: bool


class BlockingExchange(Shared, Protocol):
    """For steps that wait: each call returns when its own part is done."""

    @property
    def name(self) -> int:
        """This process's, by which the others know it."""

    @property
    def result_columns(self) -> int:
        """Columns of the whole result of a step."""

    def wires(self, shared_bytes: int) -> Wires | None:
        """Connects programs that exchange rows by themselves; all processes call it at the same time.

        Args:
            shared_bytes: memory of this process that others should see, if they are on the same machine.

        Returns:
            None: they cannot be connected, and programs call the methods below.
        """

    def all_sum(self, x: Floats, out: Floats) -> None:
        """Writes to out, like x, the sum of all x over the stage, with the same bits at each process."""

    def send(self, x: Floats) -> None:
        """Sends rows to the next stage."""

    def receive(self, out: Floats) -> None:
        """Receives rows of the stage before."""

    def gather_result(self, x: Floats | None, out: Floats, tops: int) -> None:
        """Writes the result of a step to out at the process that answers; all call it with the same `tops`.

        Args:
            x: this process's columns, [rows, columns]; None: it has none.
            out: [rows, all columns]; elsewhere, memory to work in.
            tops: see `Batch.tops`. At least so many logits of each row are in out; the others are -inf.
        """


class LazyExchange(Shared, Protocol):
    """For steps that are lazy MLX graphs. Every process makes the same calls in the same order."""

    @property
    def traceable(self) -> bool:
        """Whether MLX may compile a step with them; not where some wait for the other side when they are called."""

    @property
    def stays_on_gpu(self) -> bool:
        """Whether sums never pass through the CPU."""

    def all_sum_lazily(self, x: mx.array) -> mx.array:
        """The sum of all x over the stage, like x."""

    def send_lazily(self, x: mx.array) -> mx.array:
        """x; it is sent to the next stage when this is computed."""

    def receive_lazily(self, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        """Rows of the stage before."""

    def gather_result_lazily(self, x: mx.array | None, rows: int, tops: int) -> mx.array:
        """The result of a step, [rows, all columns], f32; elsewhere an array of this shape that depends on it.

        Args:
            x: this process's columns, [rows, columns], f32; None: it has none.
            rows: at least one.
            tops: as for `gather_result`.
        """


class Exchange(BlockingExchange, LazyExchange, Protocol):
    """What a host is given; it uses one of the two."""

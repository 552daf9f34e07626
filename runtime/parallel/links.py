"""What the ranks of a model send each other during a step, over `mx.distributed`.

All ranks call the same methods in the same order. Sums have the same bits on all ranks.

A sum gathers what each rank has and adds it in the order of the ranks. On ring that takes half the hops of MLX's
all_sum, and an element's bits do not depend on where in the message it is: ring's all_sum begins each part of a message
at another rank, so that with three ranks a sequence's bits would depend on its company.
"""

import contextlib
from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import Place
from mlxr.compiler.errors import HostError
from mlxr.runtime.parallel.group_moves import GroupMoves
from mlxr.runtime.parallel.join import World
from mlxr.runtime.parallel.line_moves import LineMoves

_PIECE_BYTES = 256 << 10
"""Ring gathers 512 KB or more with twice the threads, which poll: on the one core of a rank, 4 ms instead of 0.3."""

Rows = npt.NDArray[np.float32]
"""[rows, columns] f32, contiguous."""


class Links:
    """The collectives of one rank, for NumPy arrays (done on return) and for lazy MLX arrays. One thread at a time.

    Attributes:
        stays_on_gpu: whether lazy ones never pass through the CPU.
    """

    def __init__(self, place: Place, world: World, ordered: bool = True) -> None:
        """Makes what is needed; all ranks do it at the same time.

        Args:
            place: of this rank.
            world: all ranks, connected.
            ordered: add in the order of the ranks; False: long messages between many ranks are shorter, and the order
                is the backend's.

        Raises:
            HostError: the world has another number of ranks.
        """
        if (world.group.rank(), world.group.size()) != (place.rank, place.size):
            raise HostError(
                f"MLX says rank {world.group.rank()} of {world.group.size()}, "
                f"the model says rank {place.rank} of {place.size}"
            )
        self.place, self.stays_on_gpu = place, world.backend == "nccl"
        # NCCL adds two terms at least as fast as we gather them, and a + b has the bits of b + a.
        self._in_any_order = world.backend == "nccl" if place.tensor == 2 else not ordered
        stream = None if world.backend == "nccl" else mx.new_thread_local_stream(mx.cpu)
        self._numpy_stream = stream or mx.gpu
        self._groups: GroupMoves | None = None
        self._line: LineMoves | None = None
        if world.backend in {"ring", "jaccl"} and stream is not None:
            self._line = LineMoves(place, world.group, stream, buffered=world.backend == "ring")
        if place.size > 1 and (place.pipeline == 1 or self._line is None):
            self._groups = GroupMoves(place, world.group, stream)

    def all_sum(self, x: Rows, out: Rows) -> None:
        """Sums over the ranks of this stage.

        Args:
            x: [rows, columns] f32.
            out: as x, gets the sum; may be x.

        Raises:
            HostError: a neighbour was lost.
        """
        if self.place.tensor == 1 or x.size == 0:
            np.copyto(out, x)
            return
        with self._lost():
            if self._groups is None or self._in_any_order:
                np.copyto(out, _numbers(self.all_sum_lazy(mx.array(x))))
                return
            step = max(1, _PIECE_BYTES // x[0].nbytes)
            for begin in range(0, len(x), step):
                parts = _numbers(self._groups.parts(mx.array(x[begin : begin + step])))
                total = out[begin : begin + step]
                np.add(parts[0], parts[1], out=total)
                for part in parts[2:]:
                    np.add(total, part, out=total)

    def send(self, x: Rows) -> None:
        """Gives hidden rows to the next stage. All ranks of this stage have the same rows.

        Args:
            x: [rows, columns] f32.

        Raises:
            HostError: a neighbour was lost.
        """
        with self._lost():
            mx.eval(self.send_lazy(mx.array(x)))

    def receive(self, out: Rows) -> None:
        """Takes hidden rows from the stage before this one.

        Args:
            out: [rows, columns] f32.

        Raises:
            HostError: a neighbour was lost.
        """
        with self._lost(), mx.stream(self._numpy_stream):
            np.copyto(out, _numbers(self.receive_lazy(out.shape, mx.float32)))

    def gather(self, x: Rows | None, bounds: tuple[int, ...], out: Rows | None) -> None:
        """Gives rank 0 the logits that the ranks of the last stage have.

        Args:
            x: [rows, own columns] f32; None: this rank is not in the last stage.
            bounds: the first column of each rank of the last stage, and the end.
            out: [rows, all columns] f32, on rank 0; None on others.

        Raises:
            HostError: a neighbour was lost.
        """
        if self.place.size == 1 and x is not None and out is not None:
            np.copyto(out, x)
            return
        rows = x.shape[0] if x is not None else out.shape[0] if out is not None else 0
        if not rows:
            return
        with self._lost(), mx.stream(self._numpy_stream):
            # Along a line, only rank 0 gets all. A lazy gather can be no line.
            moves = self._line or self._moves()
            result = moves.gather(None if x is None else mx.array(x), bounds, rows, mx.float32)
            if result is not None:
                mx.eval(result)
        if out is not None and result is not None:
            np.copyto(out, _numbers(result))

    def all_sum_lazy(self, x: mx.array) -> mx.array:
        """As `all_sum`, of an MLX array in f32, bf16 or f16.

        Halves are added in f32, but by NCCL and along a line (ring with several stages) in their own type.
        """
        if self.place.tensor == 1 or x.size == 0:
            return x
        if self._groups is None:
            return self._moves_on_line().sum(x)
        if self._in_any_order:
            return self._groups.sum_in_any_order(x)
        parts = self._groups.parts(x)
        total = parts[0].astype(mx.float32)
        for i in range(1, self.place.tensor):
            total = total + parts[i]
        return total.astype(x.dtype)

    def send_lazy(self, x: mx.array) -> mx.array:
        """As `send`; the result is x, and must be evaluated."""
        return self._moves().send(x)

    def receive_lazy(self, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        """As `receive`: rows of this shape and type."""
        return self._moves().receive(shape, dtype)

    def gather_lazy(self, x: mx.array | None, bounds: tuple[int, ...], rows: int, dtype: mx.Dtype) -> mx.array | None:
        """As `gather`; the result must be evaluated on every rank that gets one. Only rank 0 gets logits.

        Args:
            x: [rows, own columns]; None: this rank is not in the last stage.
            bounds: the first column of each rank of the last stage, and the end.
            rows: how many.
            dtype: of x, on all ranks.
        """
        return x if self.place.size == 1 else self._moves().gather(x, bounds, rows, dtype)

    def _moves(self) -> GroupMoves | LineMoves:
        moves = self._groups or self._line
        assert moves is not None, "a model on one rank moves nothing"
        return moves

    def _moves_on_line(self) -> LineMoves:
        assert self._line is not None
        return self._line

    @contextlib.contextmanager
    def _lost(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise HostError(f"rank {self.place.rank} lost a neighbour: {error}") from error


def _numbers(array: mx.array) -> Rows:
    """The array's memory as NumPy sees it, once it is computed."""
    mx.eval(array)
    return np.array(array, copy=False)

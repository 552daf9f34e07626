"""What the ranks of a model send each other during a step.

All ranks call the same methods in the same order. Sums have the same bits on all ranks. Rows go over `mx.distributed`,
but for programs that exchange them by themselves (host cpu): these get `wires`.

A sum over MLX gathers what each rank has and adds it in the order of the ranks. On ring that takes half the hops of
MLX's all_sum, and an element's bits do not depend on where in the message it is: ring's all_sum begins each part of a
message at another rank, so that with three ranks a sequence's bits would depend on its company.
"""

import contextlib
from collections.abc import Iterator, Sequence

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import RankPosition
from mlxr.compiler.errors import HostError, RankError
from mlxr.runtime.hosts.exchange import Floats, Wires
from mlxr.runtime.parallel.group_moves import GroupMoves
from mlxr.runtime.parallel.join import World
from mlxr.runtime.parallel.line_moves import LineMoves
from mlxr.runtime.parallel.mesh import Mesh

_PIECE_BYTES = 256 << 10
"""Ring gathers 512 KB or more with twice the threads, which poll: on the one core of a rank, 4 ms instead of 0.3."""


class Links:
    """`Collectives` of one rank. One thread at a time.

    Attributes:
        stays_on_gpu: see `Collectives`.
    """

    def __init__(self, place: RankPosition, world: World, ordered: bool = True) -> None:
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
        self.place, self._world = place, world
        self.stays_on_gpu = world.backend == "nccl"
        # NCCL adds two terms at least as fast as we gather them, and a + b has the bits of b + a.
        self._in_any_order = world.backend == "nccl" if place.tensor == 2 else not ordered
        stream = None if world.backend == "nccl" else mx.new_thread_local_stream(mx.cpu)
        self._numpy_stream = stream or mx.gpu
        self._groups: GroupMoves | None = None
        self._line: LineMoves | None = None
        self._mesh: Mesh | None = None
        if world.backend in {"ring", "jaccl"} and stream is not None:
            self._line = LineMoves(place, world.group, stream, buffered=world.backend == "ring")
        if place.size > 1 and (place.pipeline == 1 or self._line is None):
            self._groups = GroupMoves(place, world.group, stream)

    def wires(self, shared_bytes: int) -> Wires | None:
        """See `Collectives`. MLX knows the ranks' addresses where its backend is ring."""
        if self.place.size == 1 or not self._world.hosts:
            return None
        self._mesh = Mesh.connect(self.place, self._world)
        return None if self._mesh is None else self._mesh.wires(shared_bytes)

    def all_sum(self, x: Floats, out: Floats) -> None:
        """See `Collectives`; out may be x.

        Raises:
            HostError: a neighbour was lost.
        """
        with self._lost():
            step = max(1, _PIECE_BYTES // x.itemsize // x.shape[1])
            for begin in range(0, len(x), step):
                piece = mx.array(x[begin : begin + step])
                np.copyto(out[begin : begin + step], _numbers(self.all_sum_lazily(piece)))

    def send(self, x: Floats) -> None:
        """See `Collectives`. All ranks of this stage have the same rows.

        Raises:
            HostError: a neighbour was lost.
        """
        with self._lost():
            mx.eval(self.send_lazily(mx.array(x)))

    def receive(self, out: Floats) -> None:
        """See `Collectives`.

        Raises:
            HostError: a neighbour was lost.
        """
        with self._lost(), mx.stream(self._numpy_stream):
            np.copyto(out, _numbers(self.receive_lazily(out.shape, mx.float32)))

    def gather(self, x: Floats | None, bounds: Sequence[int], out: Floats) -> None:
        """See `Collectives`.

        Raises:
            HostError: a neighbour was lost.
        """
        place, rows = self.place, len(out)
        if place.size == 1 and x is not None:
            np.copyto(out, x)
            return
        if not rows:
            return
        if x is None and place.in_last_stage:
            x = np.zeros((rows, 0), np.float32)  # of a result that only the first rank of the stage gives
        if self._mesh is not None:
            self._mesh.gather(x, bounds, out)
            return
        with self._lost(), mx.stream(self._numpy_stream):
            # Along a line, only rank 0 gets all. A lazy gather can be no line.
            moves = self._line or self._moves()
            result = moves.gather(None if x is None else mx.array(x), tuple(bounds), rows, mx.float32)
            if result is not None:
                mx.eval(result)
        if place.rank == 0 and result is not None:
            np.copyto(out, _numbers(result))

    @property
    def traceable(self) -> bool:
        """See `Collectives`. Between stages, rows are moved, or put in order, when the methods are called."""
        return self.place.pipeline == 1

    def all_sum_lazily(self, x: mx.array) -> mx.array:
        """See `Collectives`; of f32, bf16 or f16.

        Halves are added in f32, but by NCCL and along a line (ring with several stages) in their own type.
        """
        if self.place.tensor == 1 or x.size == 0:
            return x
        if self._groups is None:
            assert self._line is not None
            return self._line.sum(x)
        if self._in_any_order:
            return self._groups.sum_in_any_order(x)
        parts = self._groups.parts(x)
        total = parts[0].astype(mx.float32)
        for i in range(1, self.place.tensor):
            total = total + parts[i]
        return total.astype(x.dtype)

    def send_lazily(self, x: mx.array) -> mx.array:
        """See `Collectives`."""
        return self._moves().send(x)

    def receive_lazily(self, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        """See `Collectives`."""
        return self._moves().receive(shape, dtype)

    def gather_lazily(self, x: mx.array | None, bounds: Sequence[int], rows: int) -> mx.array:
        """See `Collectives`. Ranks that have nothing and get nothing return zeros."""
        if self.place.size == 1 and x is not None:
            return x
        if x is None and self.place.in_last_stage:
            x = mx.zeros((rows, 0))
        result = self._moves().gather(x, tuple(bounds), rows, mx.float32)
        return mx.zeros((rows, bounds[-1])) if result is None else result

    def _moves(self) -> GroupMoves | LineMoves:
        moves = self._groups or self._line
        assert moves is not None, "a model on one rank moves nothing"
        return moves

    @contextlib.contextmanager
    def _lost(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RankError(self.place.rank, f"lost a neighbour: {error}") from error


def _numbers(array: mx.array) -> Floats:
    """The array's memory as NumPy sees it, once it is computed."""
    mx.eval(array)
    return np.array(array, copy=False)

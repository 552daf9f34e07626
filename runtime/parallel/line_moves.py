"""Moves between neighbours, where MLX cannot split its group: ring and jaccl with several stages.

The ranks of a stage are a line in the ring. The last one of a stage is a neighbour of the first one of the next, and
the last of all is a neighbour of rank 0.
"""

import mlx.core as mx

from mlxr.compiler.artifact import RankPosition

_BUFFERED_BYTES = 16384


class LineMoves:
    """Moves that are done when the method returns: a lazy receive depends on nothing, and MLX might do it too early."""

    def __init__(
        self, place: RankPosition, world: mx.distributed.Group, stream: mx.ThreadLocalStream, buffered: bool
    ) -> None:
        """Stores what is needed.

        Args:
            place: of this rank.
            world: all ranks.
            stream: on which MLX communicates.
            buffered: whether a send of a few KB ends before the other side receives.
        """
        self._place, self._world, self._stream = place, world, stream
        self._buffered_bytes = _BUFFERED_BYTES if buffered else 0

    def sum(self, x: mx.array) -> mx.array:
        """The sum over the ranks of the stage: ((x0 + x1) + x2) + ..., added along the line, then sent back."""
        rank, place = self._place.rank, self._place
        if place.tensor == 2 and x.nbytes <= self._buffered_bytes:
            other = rank + 1 - 2 * place.tensor_rank
            self._send(x, other)
            received = self._receive(x.shape, x.dtype, other)
            return mx.add(x, received, stream=self._stream)  # a + b has the bits of b + a
        total = x
        if place.tensor_rank:
            total = mx.add(self._receive(x.shape, x.dtype, rank - 1), x, stream=self._stream)
        if place.tensor_rank < place.tensor - 1:
            self._send(total, rank + 1)
            total = self._receive(x.shape, x.dtype, rank + 1)
        if place.tensor_rank:
            self._send(total, rank - 1)
        return total

    def send(self, x: mx.array) -> mx.array:
        """Gives rows to the next stage; only the last rank of a stage does it."""
        if self._place.tensor_rank == self._place.tensor - 1:
            self._send(x, self._place.rank + 1)
        return x

    def receive(self, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        """The rows of the stage before this one, handed on along the line."""
        rows = self._receive(shape, dtype, self._place.rank - 1)
        if self._place.tensor_rank < self._place.tensor - 1:
            self._send(rows, self._place.rank + 1)
        return rows

    def gather(self, x: mx.array | None, bounds: tuple[int, ...], rows: int, dtype: mx.Dtype) -> mx.array | None:
        """All columns, on rank 0; None on others. The last stage's columns are put together along its line."""
        place, size = self._place, self._place.size
        if place.pipeline == 1:
            return self._gather_to_first(x, bounds, rows, dtype)
        if x is not None:
            begin = bounds[place.tensor_rank]
            if begin > bounds[0]:
                before = self._receive((rows, begin - bounds[0]), dtype, place.rank - 1)
                x = mx.concatenate([before, x], axis=1, stream=self._stream)
            if x.shape[1]:
                self._send(x, (place.rank + 1) % size)
        return self._receive((rows, bounds[-1] - bounds[0]), dtype, size - 1) if place.rank == 0 else None

    def _gather_to_first(
        self, x: mx.array | None, bounds: tuple[int, ...], rows: int, dtype: mx.Dtype
    ) -> mx.array | None:
        assert x is not None, "in the only stage, all ranks have logits"
        place, end = self._place, bounds[self._place.tensor_rank + 1]
        if end < bounds[-1]:
            after = self._receive((rows, bounds[-1] - end), dtype, place.rank + 1)
            x = mx.concatenate([x, after], axis=1, stream=self._stream)
        if place.rank == 0:
            return x
        if x.shape[1]:
            self._send(x, place.rank - 1)
        return None

    def _send(self, x: mx.array, rank: int) -> None:
        mx.eval(mx.distributed.send(x, rank, group=self._world, stream=self._stream))

    def _receive(self, shape: tuple[int, ...], dtype: mx.Dtype, rank: int) -> mx.array:
        rows = mx.distributed.recv(shape, dtype, rank, group=self._world, stream=self._stream)
        mx.eval(rows)
        return rows

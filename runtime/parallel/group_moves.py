"""Collectives within groups of ranks: for one stage on any backend, and for several where MLX can split its group.

NCCL has no send and receive in MLX. So a stage gives its rows to the next by a sum to which all others add zeros.
"""

import itertools

import mlx.core as mx

from mlxr.compiler.artifact import RankPosition

Group = mx.distributed.Group
Target = mx.ThreadLocalStream | None


class GroupMoves:
    """Lazy collectives: every rank evaluates what it gets, also where it ignores the result."""

    def __init__(self, place: RankPosition, world: Group, stream: Target) -> None:
        """Splits the world; all ranks do it at the same time.

        Args:
            place: of this rank.
            world: all ranks.
            stream: on which MLX communicates; None: MLX's choice.
        """
        self._place, self._stream = place, stream
        stages = range(place.pipeline)
        if place.pipeline == 1:
            self._stage = self._ends = world
            self._borders: list[Group] = []
        else:
            self._stage = world.split(place.stage)
            last = [0, *range((place.pipeline - 1) * place.tensor, place.size)]
            self._ends = world.split(int(place.rank in last))
            borders = [range(stage * place.tensor - 1, (stage + 1) * place.tensor) for stage in stages[1:]]
            self._borders = [world.split(int(place.rank in border)) for border in borders]
        self._latest: mx.array | None = None

    def parts(self, x: mx.array) -> mx.array:
        """What each rank of the stage gives, in their order: [tensor, ...]."""
        gathered = mx.distributed.all_gather(self._stacked(x), group=self._stage, stream=self._stream)
        return self._follows(gathered)

    def sum_in_any_order(self, x: mx.array) -> mx.array:
        """The sum over the ranks of the stage; more than two terms are added in an order of the backend's."""
        return self._follows(mx.distributed.all_sum(x, group=self._stage, stream=self._stream))

    def send(self, x: mx.array) -> mx.array:
        """Gives rows to the next stage; only the last rank of a stage does it. The result is to be evaluated."""
        if self._place.tensor_rank < self._place.tensor - 1:
            return x
        return self._cross(x, self._place.stage)

    def receive(self, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        """The rows of the stage before this one."""
        return self._cross(mx.zeros(shape, dtype), self._place.stage - 1)

    def gather(self, x: mx.array | None, bounds: tuple[int, ...], rows: int, dtype: mx.Dtype) -> mx.array | None:
        """All columns, on rank 0. On other ranks of the last stage, something to be evaluated; None on the rest."""
        place = self._place
        widths = [end - begin for begin, end in itertools.pairwise(bounds)]
        if x is None and place.rank:
            return None
        own = mx.zeros((rows, max(widths)), dtype) if x is None else mx.pad(x, [(0, 0), (0, max(widths) - x.shape[1])])
        sent = self._in_order(self._stacked(own))
        gathered = self._follows(mx.distributed.all_gather(sent, group=self._ends, stream=self._stream))
        if place.rank:
            return gathered
        skipped = int(place.pipeline > 1)  # rank 0 is in the group, but not in the last stage
        return mx.concatenate([gathered[i + skipped, :, :width] for i, width in enumerate(widths) if width], axis=1)

    def _stacked(self, x: mx.array) -> mx.array:
        return mx.expand_dims(x, 0, stream=self._stream)

    def _cross(self, x: mx.array, border: int) -> mx.array:
        sent = self._in_order(x)
        return self._follows(mx.distributed.all_sum(sent, group=self._borders[border], stream=self._stream))

    def _in_order(self, x: mx.array) -> mx.array:
        """Zeros depend on nothing, so that MLX could send them before what comes earlier, and all ranks would wait."""
        if self._latest is None:
            return x
        ordered: list[mx.array] = mx.depends([x], [self._latest])
        return ordered[0]

    def _follows(self, result: mx.array) -> mx.array:
        if self._place.pipeline > 1:
            self._latest = result
        return result

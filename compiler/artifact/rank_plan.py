"""What a plan says of its rank, where a model is split over several."""

from typing import get_args

from mlxr.compiler.ir.ops.collectives import CollectiveKind
from mlxr.compiler.spec.record import Record

COLLECTIVES: tuple[CollectiveKind, ...] = get_args(CollectiveKind)
"""The kinds by their numbers in C."""


class RankPlan(Record):
    """Which part of a model a plan is for.

    Attributes:
        rank: its number; rank 0 schedules, samples and answers.
        tensor: ranks that share each layer.
        pipeline: stages, each with some of the layers.
        result_bounds: the step's result by columns: tensor rank t of the last stage has [bounds[t], bounds[t + 1]).
    """

    rank: int
    tensor: int
    pipeline: int
    result_bounds: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.tensor * self.pipeline

    @property
    def stage(self) -> int:
        """The stage of this rank."""
        return self.rank // self.tensor

    @property
    def tensor_rank(self) -> int:
        """Its number within the stage."""
        return self.rank % self.tensor

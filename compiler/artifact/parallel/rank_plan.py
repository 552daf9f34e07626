"""What a plan says of its rank, where a model is split over several."""

from typing import get_args

from mlxr.compiler.ir.ops.collectives import CollectiveKind
from mlxr.compiler.spec.record import Record

COLLECTIVES: tuple[CollectiveKind, ...] = get_args(CollectiveKind)
"""The kinds by their numbers in C."""


class RankPosition(Record):
    """Where a rank stands among the ranks of a model. The ranks of a stage are neighbours.

    Attributes:
        rank: its number; rank 0 schedules, samples and answers.
        tensor: ranks that share each layer.
        pipeline: stages, each with some of the layers.
    """

    rank: int
    tensor: int
    pipeline: int

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

    @property
    def in_last_stage(self) -> bool:
        """Whether its stage makes the step's result."""
        return self.stage == self.pipeline - 1


class RankPlan(RankPosition):
    """Which part of a model a plan is for.

    Attributes:
        result_bounds: the step's result by columns: tensor rank t of the last stage has [bounds[t], bounds[t + 1]).
    """

    result_bounds: tuple[int, ...]

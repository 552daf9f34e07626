"""Where a rank stands among the ranks of a model."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A rank's place. The ranks of a stage are neighbours: rank = stage * tensor + tensor_rank.

    Attributes:
        rank: 0 has the engine.
        tensor: how many ranks share each layer.
        pipeline: how many stages of layers there are.
    """

    rank: int
    tensor: int
    pipeline: int

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.tensor * self.pipeline

    @property
    def stage(self) -> int:
        """Which stage's layers this rank has."""
        return self.rank // self.tensor

    @property
    def tensor_rank(self) -> int:
        """Which share of these layers it has."""
        return self.rank % self.tensor

    @property
    def in_last_stage(self) -> bool:
        """Whether it computes logits."""
        return self.stage == self.pipeline - 1

"""What a plan is made from besides graphs, where it is for one rank of several."""

from collections.abc import Mapping
from dataclasses import dataclass

from mlxr.compiler.artifact.rank_plan import RankPlan
from mlxr.compiler.artifact.weight_plan import WeightPlan
from mlxr.compiler.parallel.tensor_slice import TensorSlice


@dataclass(frozen=True)
class RankPart:
    """The part of a model that a rank has.

    Attributes:
        plan: what the rank's plan says of it.
        slices: its part of each tensor of the model that it has anything of, by canonical name.
        all_weights: the weights of the whole model.
    """

    plan: RankPlan
    slices: Mapping[str, TensorSlice]
    all_weights: tuple[WeightPlan, ...]

"""The weights of a model as its source graph has them: known before anything is compiled."""

from collections.abc import Sequence
from dataclasses import dataclass

from mlxr.compiler.artifact.weight_plan import WeightPlan
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.schedule.weights import plan_weights
from mlxr.compiler.spec.family import load_family
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.targets.registry import TARGETS
from mlxr.compiler.targets.source_graph import source_graph


@dataclass(frozen=True)
class SourceWeights:
    """What a file must hold.

    Attributes:
        weights: one for each tensor of the model; the weights of a plan may join several of these.
        ignored_tensors: as in a plan.
    """

    weights: Sequence[WeightPlan]
    ignored_tensors: Sequence[str]


def source_weights(spec: ModelSpec) -> SourceWeights:
    """The weights of a spec, of all its ranks. It takes a hundredth of the time of a compile.

    Raises:
        MlxrError: the spec cannot be compiled.
    """
    types = [target.types(spec, None) for target in TARGETS.values()]
    graph, _ = source_graph(spec, GeometryTable(Geometry(), ()), types)
    ignored = load_family(spec.model.tensor_names).ignored_for(spec.model, output=spec.output == "logits")
    return SourceWeights(plan_weights(spec, graph, [graph]), ignored)

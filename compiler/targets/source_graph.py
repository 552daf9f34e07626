"""The graph from which all targets' programs come, and its weights, which are known before anything is compiled."""

from collections.abc import Sequence
from dataclasses import dataclass

from mlxr.compiler.artifact.program import TargetTypes
from mlxr.compiler.artifact.weight_plan import WeightPlan
from mlxr.compiler.build.build_graph import build_graph
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.schedule.geometry import USUAL_GEOMETRY
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.schedule.last_rows import chooses_last_rows
from mlxr.compiler.schedule.memory import arena_geometry
from mlxr.compiler.schedule.weights import plan_weights
from mlxr.compiler.spec.family import EAGLE_TENSORS, load_family
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.targets.registry import TARGETS


def leading(types: Sequence[TargetTypes]) -> TargetTypes:
    """The types that decide what all programs of an artifact share: those of the target that comes first in TARGETS.

    The source graph has these types, and by this cache the geometry chooses a paged or a contiguous arena, and the
    contexts that decode attends to in one launch. Each target puts its own types in their place.

    Args:
        types: the types of each target of the artifact.
    """
    order = list(TARGETS)
    return min(types, key=lambda of_target: order.index(of_target.target))


def source_graph(
    spec: ModelSpec, table: GeometryTable, types: Sequence[TargetTypes]
) -> tuple[OpGraph, ArenaGeometry, bool]:
    """The graph as built, the arena, and whether prompts compute their last rows alone; see `chooses_last_rows`.

    There is one of each for all targets, with the types of the leading one. Each target puts its own in their place.

    Args:
        spec: the spec; its types may be `auto`.
        table: the geometry of each launch.
        types: the types of each target.

    Raises:
        BudgetError: the arena cannot hold even one sequence.
    """
    lead = leading(types)
    cache = spec.cache.model_copy(update={"dtype": str(lead.cache)})
    typed = spec.model_copy(update={"activation_dtype": str(lead.activations), "cache": cache})
    arena = arena_geometry(typed, table, [of_target.cache for of_target in types])
    return build_graph(typed, arena), arena, chooses_last_rows(spec, table)


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
    graph, *_ = source_graph(spec, GeometryTable(USUAL_GEOMETRY, ()), types)
    return SourceWeights(plan_weights(spec, graph, [graph]), ignored_tensors(spec))


def ignored_tensors(spec: ModelSpec) -> tuple[str, ...]:
    """Patterns of tensors that files may have besides; the head that guesses is a part of a model."""
    if spec.output == "guesses":
        return (".*",)
    of_head = () if spec.model.eagle is None else (EAGLE_TENSORS,)
    return (*load_family(spec.model.tensor_names).ignored_for(spec.model, output=spec.output == "logits"), *of_head)

"""The graph from which all targets' programs come."""

from collections.abc import Sequence

from mlxr.compiler.artifact.program import TargetTypes
from mlxr.compiler.build.build_graph import build_graph
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.schedule.memory import arena_geometry
from mlxr.compiler.spec.model import ModelSpec


def source_graph(spec: ModelSpec, table: GeometryTable, types: Sequence[TargetTypes]) -> tuple[OpGraph, ArenaGeometry]:
    """The graph as built, and the arena.

    There is one of each for all targets. They say the types of the first one; each target puts its own in their place.

    Args:
        spec: the spec; its types may be `auto`.
        table: the geometry of each launch.
        types: the types of each target.

    Raises:
        BudgetError: the arena cannot hold even one sequence.
    """
    cache = spec.cache.model_copy(update={"dtype": str(types[0].cache)})
    typed = spec.model_copy(update={"activation_dtype": str(types[0].activations), "cache": cache})
    arena = arena_geometry(typed, table, [of_target.cache for of_target in types])
    return build_graph(typed, arena), arena

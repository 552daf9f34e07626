"""The whole pipeline: spec -> graph -> passes -> plan -> sources -> artifact."""

import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.artifact.chip import Chip
from mlxr.compiler.artifact.manifest import CHIP, PLAN, SPEC
from mlxr.compiler.artifact.phase_name import PHASES, PhaseName
from mlxr.compiler.artifact.plan import Plan
from mlxr.compiler.artifact.target_types import TargetTypes
from mlxr.compiler.build.build_graph import build_graph
from mlxr.compiler.chips.catalog import GENERIC, find_chip
from mlxr.compiler.debug import debug_level
from mlxr.compiler.errors import BudgetError, MlxrError, PlanError
from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.passes.pipeline import PassRecord, passes_of, run_passes
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.schedule.memory import arena_geometry
from mlxr.compiler.spec.load import dump_spec
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.targets.make_plan import make_plan
from mlxr.compiler.targets.provenance import Provenance
from mlxr.compiler.targets.registry import TARGETS
from mlxr.compiler.text.byte_sizes import size
from mlxr.compiler.version import VERSION

Changes = dict[str, int]


@dataclass(frozen=True)
class Compilation:
    """An artifact, with the record of the passes and the time that it took."""

    artifact: Artifact
    passes: dict[PhaseName, list[PassRecord]]
    time_us: float


def compile_spec(
    spec: ModelSpec,
    geometry: Geometry | None = None,
    targets: Sequence[str] | None = None,
    chip: Chip | None = None,
) -> Compilation:
    """Compiles a spec.

    Args:
        spec: the spec.
        geometry: the sizes of launches for which the chip has no rule; None: the defaults.
        targets: the targets to generate code for; None: every target that can run the spec.
        chip: the chip to choose launch geometry for; None: the generic one.

    Raises:
        BudgetError: the spec needs more than its memory budget; the message says what would fit.
        PlanError: no plan can be made.
        GraphError: a pass broke a rule (a bug).
    """
    start = time.perf_counter()
    chip, targets = chip or find_chip(GENERIC), choose_targets(targets)
    table = GeometryTable(geometry or Geometry(), chip.geometry)
    types = [TARGETS[target].types(spec, chip.half) for target in targets]
    plan, sources, graphs, records = _plan(spec, table, types)
    _check_budget(spec, plan, table)
    files = {SPEC: dump_spec(spec), PLAN: plan.model_dump_json(indent=1, exclude_defaults=True) + "\n"}
    files[CHIP] = chip.model_dump_json(indent=1, exclude_defaults=True) + "\n"
    for name, graph in graphs.items():
        files[f"graph.{name}.json"] = json.dumps(graph.to_json(), indent=1) + "\n"
        files[f"graph.{name}.txt"] = graph.dump()
    files |= sources
    if debug_level() >= 3:
        print("".join(sources.values()), file=sys.stderr)
    return Compilation(Artifact(files), records, (time.perf_counter() - start) * 1e6)


def choose_targets(names: Sequence[str] | None) -> tuple[str, ...]:
    """The targets to generate code for, in the registry's order: those named, or all.

    Raises:
        PlanError: a name is not a target's, or there is none.
    """
    unknown = [name for name in names or () if name not in TARGETS]
    if unknown or (names is not None and not names):
        problem = f"there is no target {unknown[0]!r}" if unknown else "no target is named"
        raise PlanError(f"{problem}; targets are {', '.join(TARGETS)}")
    return tuple(target for target in TARGETS if names is None or target in names)


def _plan(
    spec: ModelSpec, table: GeometryTable, types: Sequence[TargetTypes]
) -> tuple[Plan, dict[str, str], dict[str, OpGraph], dict[PhaseName, list[PassRecord]]]:
    first = types[0]
    origin = Provenance(VERSION, spec.name, hashlib.sha256(dump_spec(spec).encode()).hexdigest()[:12])
    cache = spec.cache.model_copy(update={"dtype": str(first.cache)})
    spec = spec.model_copy(update={"activation_dtype": str(first.activations), "cache": cache})
    arena = arena_geometry(spec, table, [target_types.cache for target_types in types])
    source = build_graph(spec, arena)
    graphs: dict[PhaseName, OpGraph] = {}
    records: dict[PhaseName, list[PassRecord]] = {}
    for phase in PHASES:
        graphs[phase], records[phase] = run_passes(source, passes_of(phase, deterministic=spec.deterministic))
    plan, sources = make_plan(spec, arena, source, graphs, table, types, origin)
    return plan, sources, {"source": source} | {str(phase): graph for phase, graph in graphs.items()}, records


def _check_budget(spec: ModelSpec, plan: Plan, table: GeometryTable) -> None:
    memory, budget = plan.largest_memory, spec.memory_budget
    if budget is None or memory.total_bytes <= budget:
        return
    types = [program.types for program in plan.programs.values()]
    raise BudgetError(
        f"{spec.name} needs {size(memory.total_bytes)} (weights {size(memory.weights_bytes)}, arena "
        f"{size(memory.arena_bytes)}, activations {size(memory.activation_bytes)}) but memory_budget is {size(budget)}"
        f"; the largest that fits: {_what_fits(spec, memory.weights_bytes, table, types)}"
    )


def _what_fits(spec: ModelSpec, weights_bytes: int, table: GeometryTable, types: Sequence[TargetTypes]) -> str:
    """The largest context, number of sequences and (where the spec fixes it) number of blocks within the budget."""
    context, sequences = spec.model.context, spec.cache.max_sequences

    def largest(limit: int, change: Callable[[int], Changes]) -> int:
        return _largest(limit, lambda n: _fits(spec, change(n), weights_bytes, table, types))

    ways = []
    if n := largest(context, lambda n: {"context": n}):
        ways.append(f"context {n} with max_sequences {sequences}")
    if n := largest(sequences, lambda n: {"max_sequences": n}):
        ways.append(f"max_sequences {n} with context {context}")
    if spec.cache.num_blocks and (n := largest(spec.cache.num_blocks, lambda n: {"num_blocks": n})):
        ways.append(f"cache.num_blocks {n}")
    if not ways and (n := largest(context, lambda n: {"context": n, "max_sequences": 1})):
        ways.append(f"context {n} with max_sequences 1")
    return " or ".join(ways) if ways else "nothing fits: use smaller weight formats or a larger budget"


def _fits(
    spec: ModelSpec, changes: Changes, weights_bytes: int, table: GeometryTable, types: Sequence[TargetTypes]
) -> bool:
    """Whether a changed spec fits. It plans one layer: activations do not depend on the number of layers."""
    data = spec.model_dump()
    layers = spec.model.num_layers
    data["model"] |= {"num_layers": 1, "context": changes.get("context", spec.model.context)}
    data["cache"] |= {name: value for name, value in changes.items() if name != "context"}
    if spec.cache.memory_budget is not None:
        data["cache"]["memory_budget"] = spec.cache.memory_budget // layers
    data["memory_budget"] = None
    data["weights"]["tensors"] = {}
    try:
        memory = _plan(ModelSpec.model_validate(data), table, types)[0].largest_memory
    except (MlxrError, ValidationError):
        return False
    assert spec.memory_budget is not None, "the caller has checked that there is a budget"
    return weights_bytes + memory.arena_bytes * layers + memory.activation_bytes <= spec.memory_budget


def _largest(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number from 1 to limit that fits, or 0, by bisection."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low

"""The whole pipeline: spec -> graph -> passes -> plan -> sources -> artifact."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError
from pydantic_core import to_json

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.artifact.chip import Chip
from mlxr.compiler.artifact.handover_layout import HandoverLayout
from mlxr.compiler.artifact.manifest import CHIP, EXPERTS, PARALLEL, PLAN, SPEC, rank_folder
from mlxr.compiler.artifact.parallel.parallel_plan import parallel_plan
from mlxr.compiler.artifact.plan import Plan
from mlxr.compiler.artifact.program import PHASES, MemoryPlan, PhaseName, TargetTypes
from mlxr.compiler.build.cut_experts import cut_experts
from mlxr.compiler.chips.catalog import GENERIC, find_chip
from mlxr.compiler.debug import debug_level
from mlxr.compiler.errors import BudgetError, MlxrError, PlanError
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.parallel.check_ranks import Rank, check_order, check_ranks, collectives
from mlxr.compiler.parallel.divide_model import RankPart, divide_model
from mlxr.compiler.passes.pipeline import PassRecord, run_phases
from mlxr.compiler.schedule.geometry import USUAL_GEOMETRY, Geometry
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.schedule.last_rows import chooses_last_rows
from mlxr.compiler.schedule.weights import plan_weights
from mlxr.compiler.spec.load import dump_spec
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.targets.early import Early
from mlxr.compiler.targets.make_plan import make_plan
from mlxr.compiler.targets.provenance import Provenance
from mlxr.compiler.targets.registry import TARGETS, choose_targets
from mlxr.compiler.targets.source_graph import source_graph
from mlxr.compiler.text import size

_Sizes = dict[str, int]


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
    early: Early | None = None,
) -> Compilation:
    """Compiles a spec.

    Args:
        spec: the spec.
        geometry: the sizes of launches for which the chip has no rule; None: the defaults.
        targets: the targets to generate code for; None: every target that can run the spec.
        chip: the chip to choose launch geometry for; None: the generic one.
        early: a target to render first, and what to call with its sources; a split model ignores it.

    Raises:
        BudgetError: the spec needs more than its memory budget; the message says what would fit.
        PlanError: no plan can be made.
        GraphError: a pass broke a rule (a bug).
    """
    start = time.perf_counter()
    chip, targets = chip or find_chip(GENERIC), choose_targets(targets)
    table = GeometryTable(geometry or USUAL_GEOMETRY, chip.geometry)
    types = [TARGETS[target].types(spec, chip.half) for target in targets]
    files = {SPEC: dump_spec(spec)}
    if spec.experts_on_cpu:
        cut_files, records = _plan_cut(spec, table, types)
        files |= cut_files
    elif spec.parallel is None:
        planned = _plan(spec, table, types, early, Provenance.of(spec, files[SPEC]))
        _check_budget(spec, planned.plan, table)
        files |= planned.files
        records = planned.passes
    else:
        split_files, records = _plan_ranks(spec, table, types)
        files |= split_files
    files[CHIP] = chip.model_dump_json(indent=1, exclude_defaults=True) + "\n"
    return Compilation(Artifact(files), records, (time.perf_counter() - start) * 1e6)


@dataclass(frozen=True)
class _Planned:
    """A plan, its sources by file, its graphs by name, and the record of the passes."""

    plan: Plan
    sources: dict[str, str]
    graphs: dict[str, OpGraph]
    passes: dict[PhaseName, list[PassRecord]]

    @property
    def files(self) -> dict[str, str]:
        """The files of an artifact with this plan."""
        if debug_level() >= 3:
            print("".join(self.sources.values()), file=sys.stderr)
        files = {PLAN: self.plan.model_dump_json(indent=1, exclude_defaults=True) + "\n"}
        for name, graph in self.graphs.items():
            files |= _graph_files(name, graph)
        return files | self.sources


def _graph_files(name: str, graph: OpGraph) -> dict[str, str]:
    return {
        f"graph.{name}.json": to_json(graph.to_json(), indent=1).decode() + "\n",
        f"graph.{name}.txt": graph.dump(),
    }


def _plan(
    spec: ModelSpec,
    table: GeometryTable,
    types: Sequence[TargetTypes],
    early: Early | None = None,
    origin: Provenance | None = None,
) -> _Planned:
    """Plans a model that is not split."""
    source, arena, last_rows = source_graph(spec, table, types)
    return _plan_graph(spec, arena, source, source, table, types, early=early, origin=origin, last_rows=last_rows)


def _plan_graph(
    spec: ModelSpec,
    arena: ArenaGeometry,
    whole: OpGraph,
    source: OpGraph,
    table: GeometryTable,
    types: Sequence[TargetTypes],
    part: RankPart | None = None,
    early: Early | None = None,
    *,
    origin: Provenance | None = None,
    last_rows: bool = False,
) -> _Planned:
    """Plans a source graph, which is that of the whole model or of a part of it."""
    origin = origin or Provenance.of(spec)
    graphs, records = run_phases(source, deterministic=spec.deterministic, last_rows=last_rows)
    plan, sources = make_plan(spec, arena, whole, graphs, table, types, origin, part, early)
    named = {"source": source} | {str(phase): graph for phase, graph in graphs.items()}
    return _Planned(plan, sources, named, records)


def _plan_cut(
    spec: ModelSpec, table: GeometryTable, types: Sequence[TargetTypes]
) -> tuple[dict[str, str], dict[PhaseName, list[PassRecord]]]:
    """Plans a card, and the CPU that has some layers' experts. Returns the files of both, and the passes of the card.

    Raises:
        PlanError: only target metal has kernels for a card.
        BudgetError: the card's part needs more than the budget.
    """
    on_card = [own for own in types if own.target == "metal"]
    if not on_card:
        raise PlanError("experts_on_cpu is for a card beside the CPU: compile target metal, or set it to 0")
    whole, arena, _ = source_graph(spec, table, on_card)
    cut, all_weights = cut_experts(whole, spec.experts_on_cpu), plan_weights(spec, whole, [whole])
    part = RankPart(None, None, all_weights)
    card = _plan_graph(spec, arena, whole, cut.card, table, on_card, part)
    budget, memory = spec.budget_of(0), card.plan.largest_memory
    if budget is not None and memory.total_bytes > budget:
        raise BudgetError(
            f"the card's part of {spec.name} needs {_needs(memory)} but memory_budget is {size(budget)}; leave more "
            "layers' experts to the CPU (experts_on_cpu), or use a shorter context"
        )
    nothing = replace(arena, stores=(), groups=tuple(replace(group, layers=()) for group in arena.groups))
    unlimited = spec.model_copy(update={"memory_budget": None})
    cpu = [TARGETS["cpu"].types(spec, None)]
    experts = _plan_graph(unlimited, nothing, whole, cut.experts, table, cpu, part)
    shared = experts.plan.first.memory.model_copy(update={"handover_bytes": HandoverLayout.of(card.plan).size_bytes})
    experts = replace(experts, plan=experts.plan.with_program("cpu", memory=shared))
    return card.files | {EXPERTS + path: text for path, text in experts.files.items()}, card.passes


def _plan_ranks(
    spec: ModelSpec, table: GeometryTable, types: Sequence[TargetTypes]
) -> tuple[dict[str, str], dict[PhaseName, list[PassRecord]]]:
    """Plans every rank of a model that is split. Returns the files of all, and the passes of rank 0."""
    whole, arena, _ = source_graph(spec, table, types)
    parts = divide_model(spec, whole, arena)
    check_ranks(spec, whole, [Rank(part.graph, part.slices) for part in parts])
    all_weights = plan_weights(spec, whole, [whole])
    files, planned = _graph_files("source", whole), []
    for rank, part in enumerate(parts):
        of_rank = RankPart(part.plan, part.slices, all_weights)
        planned.append(_plan_graph(spec, part.arena, whole, part.graph, table, types, of_rank))
        plan, budget = planned[-1].plan, spec.budget_of(rank)
        if budget is not None and plan.largest_memory.total_bytes > budget:
            needs = _needs(plan.largest_memory)
            raise BudgetError(
                f"rank {rank} of {spec.name} needs {needs} but its memory_budget is {size(budget)}; give it a smaller "
                "share (parallel.shares, parallel.layers), more ranks, or a shorter context"
            )
        files |= {rank_folder(rank) + path: text for path, text in planned[-1].files.items()}
    assert spec.parallel is not None, "the model is split"
    for phase in PHASES:  # passes may have removed one that nothing reads
        check_order([collectives(each.graphs[phase]) for each in planned], spec.parallel)
    split = parallel_plan(spec, [each.plan for each in planned], [each.graphs for each in planned])
    files[PARALLEL] = split.model_dump_json(indent=1) + "\n"
    return files, planned[0].passes


def _needs(memory: MemoryPlan) -> str:
    return (
        f"{size(memory.total_bytes)} (weights {size(memory.weights_bytes)}, arena {size(memory.arena_bytes)}, "
        f"activations {size(memory.activation_bytes)})"
    )


def _check_budget(spec: ModelSpec, plan: Plan, table: GeometryTable) -> None:
    memory, budget = plan.largest_memory, spec.budget_of(0)
    if budget is None or memory.total_bytes <= budget:
        return
    types = [program.types for program in plan.programs.values()]
    raise BudgetError(
        f"{spec.name} needs {_needs(memory)} but memory_budget is {size(budget)}; the largest that fits: "
        f"{_what_fits(spec, memory.weights_bytes, table, types)}"
    )


def _what_fits(spec: ModelSpec, weights_bytes: int, table: GeometryTable, types: Sequence[TargetTypes]) -> str:
    """The largest context, number of sequences and (where the spec fixes it) number of blocks within the budget."""
    context, sequences = spec.model.context, spec.cache.max_sequences

    def largest(limit: int, change: Callable[[int], _Sizes]) -> int:
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
    spec: ModelSpec, changes: _Sizes, weights_bytes: int, table: GeometryTable, types: Sequence[TargetTypes]
) -> bool:
    """Whether a changed spec fits. It plans few layers, unless what layers keep differs: activations are as large.

    Those of a single one are smaller if the last layer computes few rows.
    """
    data, layers = spec.model_dump(), spec.model.num_layers
    planned = layers if any(spec.model.recurrents) else min(1 + chooses_last_rows(spec, table), layers)
    data["model"] |= {
        "num_layers": planned,
        "context": changes.get("context", spec.model.context),
    }
    data["cache"] |= {name: value for name, value in changes.items() if name != "context"}
    if spec.cache.memory_budget is not None:
        data["cache"]["memory_budget"] = spec.cache.memory_budget * planned // layers
    data["memory_budget"] = None
    data["weights"]["tensors"] = {}
    try:
        memory = _plan(ModelSpec.model_validate(data), table, types).plan.largest_memory
    except (MlxrError, ValidationError):
        return False
    budget = spec.budget_of(0)
    assert budget is not None, "the caller has checked that there is a budget"
    return weights_bytes + memory.arena_bytes * layers // planned + memory.activation_bytes <= budget


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

"""Makes the plan: each target lowers the graphs, buffers get places, each target renders its kernels."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from mlxr.compiler.artifact.kernel_entry import ChosenGeometry
from mlxr.compiler.artifact.library_call import AttentionCall
from mlxr.compiler.artifact.plan import Plan
from mlxr.compiler.artifact.program import PHASES, PhaseName, Program, TargetTypes
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.parallel.divide_model import RankPart
from mlxr.compiler.schedule.check import check_plan
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.schedule.lowered import LoweringInput
from mlxr.compiler.schedule.memory import arena_choice, batch_limits, chunk_choice, chunk_tokens, step_tokens
from mlxr.compiler.schedule.program import DEFAULT_QUERY_TILE, place
from mlxr.compiler.schedule.weights import plan_weights
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.targets.early import Early, take_nothing
from mlxr.compiler.targets.provenance import Provenance
from mlxr.compiler.targets.registry import TARGETS
from mlxr.compiler.targets.source_graph import ignored_tensors, leading


def make_plan(
    spec: ModelSpec,
    arena: ArenaGeometry,
    source: OpGraph,
    graphs: Mapping[PhaseName, OpGraph],
    table: GeometryTable,
    types: Sequence[TargetTypes],
    origin: Provenance,
    part: RankPart | None = None,
    early: Early | None = None,
) -> tuple[Plan, dict[str, str]]:
    """The plan of a spec, and the sources that it names, by file.

    Args:
        spec: the spec.
        arena: the arena, with the cache type of the leading target; each target puts its own in its place.
        source: the graph as built, of the whole model.
        graphs: the ordered graph of each phase.
        table: the geometry of each launch.
        types: the types of each target to generate code for.
        origin: the origin that the sources state.
        part: which part of the model the graphs are; None: all of it.
        early: which target to render first; what is made is the same.

    Raises:
        PlanError: no plan can be made, or it breaks a rule.
    """
    sequences, chunk = spec.cache.max_sequences, chunk_choice(spec, table)
    prefill_chunk = chunk_tokens(spec, chunk)
    max_tokens = step_tokens(spec, prefill_chunk)
    # Hidden rows are wanted of whole prompts, logits of few tokens.
    max_rows = max_tokens if spec.output == "hidden" else max(sequences, min(prefill_chunk, 64))
    weights = plan_weights(spec, source, graphs.values(), part.slices if part else None)
    tensors = {tensor.name: tensor.shape for weight in weights for tensor in weight.parts}
    rank = part.plan if part else None
    budget = spec.budget_of(rank.rank if rank else 0)
    limits = {phase: batch_limits(spec, phase, max_tokens, max_rows) for phase in PHASES}
    inputs = LoweringInput(spec, graphs, weights, arena, limits, table, leading(types), tensors, budget, rank)
    made = _programs(types, inputs, origin, early)
    programs = {name: one.program for name, one in made.items()}
    plan = Plan(
        programs=programs,
        chunk=_exact(chunk) if _reads_whole_contexts(programs.values()) else chunk,
        weights=weights,
        ignored_tensors=ignored_tensors(spec),
        arena_chosen=arena_choice(spec, arena, table),
        vocab_size=spec.num_logits,
        num_layers=arena.num_layers,
        query_tile=_query_tile(made),
        whole_context=_whole_context(arena, table),
        max_tokens=max_tokens,
        max_rows=max_rows,
        hidden_size=spec.model.hidden_size if spec.output == "hidden" else None,
        whole_prompts=spec.model.is_encoder,
        rank=rank,
        all_weights=part.all_weights if part else (),
    )
    check_plan(plan)
    return plan, {path: text for one in made.values() for path, text in one.texts.items()}


class _Made(NamedTuple):
    """A target's program, its sources by file, and the tile of queries that its kernels fix, if they do."""

    program: Program
    texts: dict[str, str]
    query_tile: int | None


def _programs(
    types: Sequence[TargetTypes], inputs: LoweringInput, origin: Provenance, early: Early | None
) -> dict[str, _Made]:
    """What each target makes of the inputs, with its own types in place of theirs; in the order of `types`."""
    made = {}
    for own in sorted(types, key=lambda own: early is None or own.target != early.target):
        target, own_inputs = TARGETS[own.target], replace(inputs, arena=inputs.arena.with_cache(own.cache), types=own)
        lowered = target.lower(own_inputs)
        is_early = early is not None and own.target == early.target
        take_kernel = early.take_kernel if early is not None and is_early else take_nothing
        program, texts = target.render(place(lowered, own_inputs), own_inputs, origin, take_kernel)
        made[own.target] = _Made(program, texts, lowered.query_tile)
        if early is not None and is_early:
            early.take(program, texts)
    return {own.target: made[own.target] for own in types}


def _query_tile(made: Mapping[str, _Made]) -> int:
    """The tile of queries in which batches are laid out, for all programs: the one that some target's kernels fix."""
    fixed = {name: one.query_tile for name, one in made.items() if one.query_tile}
    if len(set(fixed.values())) > 1:
        tiles = ", ".join(f"{tile} for {name}" for name, tile in fixed.items())
        raise PlanError(f"targets fix different tiles of queries: {tiles}; compile each of them alone")
    return next(iter(fixed.values()), DEFAULT_QUERY_TILE)


def _whole_context(arena: ArenaGeometry, table: GeometryTable) -> int:
    """The longest context that decode attends to in one launch, with the arena of the leading target."""
    sites = (Site.of_arena("attend", cache) for cache in arena.caches)
    choices = (table.choose(site).geometry.decode_attention for site in sites)
    return min([arena.context, *(choice.whole.max_context or choice.partition.length for choice in choices)])


def _reads_whole_contexts(programs: Iterable[Program]) -> bool:
    """Whether MLX's attention may take a step; padding would break it, since it aligns the last query and last key."""
    launches = (launch for program in programs for phase in program.phases for launch in phase.launches)
    return any(isinstance(launch.body, AttentionCall) for launch in launches)


def _exact(chunk: ChosenGeometry) -> ChosenGeometry:
    """The same sizes without padding."""
    why = {name: reason for name, reason in chunk.why.items() if name != "chunk_padding"}
    return chunk.model_copy(update={"sizes": {**chunk.sizes, "chunk_padding": 0}, "why": why})

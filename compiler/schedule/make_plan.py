"""Makes the plan: lowers both steps for each target, renders sources and places activations."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mlxr.compiler.artifact.chosen_geometry import ChosenGeometry
from mlxr.compiler.artifact.kernel_entry import KernelEntry, KernelPort
from mlxr.compiler.artifact.launch import Launch
from mlxr.compiler.artifact.plan import Plan, Step
from mlxr.compiler.artifact.record import MemoryPlan
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.artifact.target_types import TargetTypes
from mlxr.compiler.artifact.weight_plan import TensorSource, WeightPlan
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.ir.graph import OpGraph, Value
from mlxr.compiler.ir.tensor import Shape
from mlxr.compiler.passes.pipeline import STEPS
from mlxr.compiler.passes.pipeline import Step as StepName
from mlxr.compiler.schedule.check import check_plan
from mlxr.compiler.schedule.draft import Draft
from mlxr.compiler.schedule.geometry import StepKernel
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.schedule.memory import arena_choice, chunk_choice, chunk_tokens, place_activations
from mlxr.compiler.schedule.recipes import recipes
from mlxr.compiler.spec.family import load_family
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.targets.cpu.make_program import make_cpu
from mlxr.compiler.targets.metal.decode_kernel.make_step_kernels import with_step_kernels
from mlxr.compiler.targets.metal.kernels.attention_kernels import AttendPrefillKernel
from mlxr.compiler.targets.metal.kernels.kernel import Kernel
from mlxr.compiler.targets.metal.lower import Lowering
from mlxr.compiler.targets.metal.lower_attention import copy_blocks_draft
from mlxr.compiler.targets.metal.render import KernelSource, Provenance, render

DEFAULT_QUERY_TILE = 32
"""Tokens of a query tile where no kernel fixes it: batches are always laid out with tiles."""


def make_plan(
    spec: ModelSpec,
    arena: ArenaGeometry,
    source: OpGraph,
    graphs: Mapping[StepName, OpGraph],
    table: GeometryTable,
    types: Sequence[TargetTypes],
    origin: Provenance,
) -> tuple[Plan, dict[str, str]]:
    """The plan of a spec, and the sources that it names, by file.

    Args:
        spec: the spec, with the types of the first target.
        arena: its arena, likewise.
        source: the graph as built, for the shapes of the tensors in files.
        graphs: the ordered graph of each step.
        table: the geometry of each launch.
        types: of each target to generate code for.
        origin: what the sources say of their origin.

    Raises:
        PlanError: no plan can be made, or it breaks a rule.
    """
    sequences, targets = spec.cache.max_sequences, {one.target: one for one in types}
    chunk = chunk_choice(spec, table)
    prefill_chunk = chunk_tokens(spec, chunk)
    # At least all sequences can decode in one step; at most all of them can be filled in one.
    max_tokens = max(sequences, min(prefill_chunk, spec.model.context * sequences))
    max_rows = max(spec.cache.max_sequences, min(prefill_chunk, 64))
    weights = _weights(spec, source, graphs.values())
    limits = {name: _limits(spec, name, max_tokens, max_rows) for name in STEPS}
    metal = _make_metal(spec, arena, graphs, table, weights, limits, origin) if "metal" in targets else _Metal()
    cpu, files = None, {entry.file: metal.sources[entry.name].text for entry in metal.kernels}
    if "cpu" in targets:
        cpu, text = make_cpu(spec, replace(arena, dtype=targets["cpu"].cache), graphs, weights, limits, origin)
        files[cpu.file] = text
    memory = MemoryPlan(
        weights_bytes=sum(weight.size_bytes for weight in weights),
        arena_bytes=arena.size_bytes,
        activation_bytes=max((step.activation_bytes for step in metal.steps), default=0),
        budget_bytes=spec.memory_budget,
    )
    attention = table.choose(Site.of_arena("attend", arena)).geometry.decode_attention
    plan = Plan(
        targets=tuple(one.target for one in types),
        types=tuple(types),
        chunk=_exact(chunk) if _reads_whole_contexts(metal.steps) else chunk,
        steps=metal.steps,
        copy_blocks=metal.copy_blocks,
        kernels=metal.kernels,
        cpu=cpu,
        weights=weights,
        ignored_tensors=load_family(spec.model.tensor_names).ignored_for(spec.model),
        arena=arena,
        arena_chosen=arena_choice(spec, arena, table),
        memory=cpu.memory if cpu and "metal" not in targets else memory,
        vocab_size=spec.model.vocab_size,
        num_layers=spec.model.num_layers,
        query_tile=metal.query_tile,
        whole_context=min(arena.context, attention.whole.max_context or attention.partition.length),
        max_tokens=max_tokens,
        max_rows=max_rows,
    )
    check_plan(plan)
    texts = {name: source.text for name, source in metal.sources.items()}
    plan, step_texts = with_step_kernels(plan, texts, metal.step)
    return plan, files | step_texts


@dataclass(frozen=True)
class _Metal:
    """The metal target's part of a plan."""

    steps: tuple[Step, ...] = ()
    copy_blocks: Launch | None = None
    kernels: tuple[KernelEntry, ...] = ()
    sources: Mapping[str, KernelSource] = field(default_factory=dict)
    query_tile: int = DEFAULT_QUERY_TILE
    step: StepKernel = field(default_factory=StepKernel)


def _make_metal(
    spec: ModelSpec,
    arena: ArenaGeometry,
    graphs: Mapping[StepName, OpGraph],
    table: GeometryTable,
    weights: Sequence[WeightPlan],
    limits: Mapping[StepName, Mapping[str, int]],
    origin: Provenance,
) -> _Metal:
    layouts = {weight.name: weight.layout for weight in weights}
    matrices = [weight.layout for weight in weights if len(weight.shape) == 2]
    whole = table.choose(Site.of_step(spec.model.num_layers, spec.model.hidden_size, matrices))
    lowerings = {
        name: Lowering(graphs[name], name, arena, table, layouts, limits[name], whole.geometry.step.threads > 0)
        for name in STEPS
    }
    drafts: dict[str, list[Draft]] = {name: lowering.run() for name, lowering in lowerings.items()}
    copies = [copy_blocks_draft(arena)] if arena.max_sequences > 1 else []
    kernels, sources = _render_all(itertools.chain(*drafts.values(), copies), origin)
    tile = next(d.kernel.tile for d in drafts["prefill"] if isinstance(d.kernel, AttendPrefillKernel))
    steps = []
    for name in STEPS:
        shapes: dict[str, tuple[Shape, DType]] = {
            v.name: (v.shape, v.dtype) for v in graphs[name].values if v.role == "activation"
        } | {s.name: (s.shape, s.dtype) for s in lowerings[name].scratch}
        kept = [out for out in graphs[name].outputs if out in shapes]
        tiles = -(-limits[name]["tokens"] // tile) + limits[name]["seqs"]
        sizes = {**limits[name], "tiles": tiles, "context": arena.context}
        reading = [replace(d, inputs=(*d.inputs, *(buffer for _, buffer in d.mlx_inputs))) for d in drafts[name]]
        buffers, total = place_activations(reading, shapes, sizes, kept)
        launches = tuple(_launch(draft, kernels[draft.kernel]) for draft in drafts[name])
        steps.append(
            Step(
                name=name,
                launches=launches,
                buffers=tuple(buffers),
                activation_bytes=total,
                outputs=graphs[name].outputs,
                chosen=whole.sizes(StepKernel) if name == "decode" else None,
            )
        )
    copy = _launch(copies[0], kernels[copies[0].kernel]) if copies else None
    return _Metal(tuple(steps), copy, tuple(kernels.values()), sources, tile, whole.geometry.step)


def _reads_whole_contexts(steps: Iterable[Step]) -> bool:
    """Whether MLX's attention may take a step, which aligns the last query with the last key."""
    return any(extent.dim == "context" for step in steps for one in step.launches for extent in one.threadgroups)


def _exact(chunk: ChosenGeometry) -> ChosenGeometry:
    """The same, but nothing is filled up."""
    why = {name: reason for name, reason in chunk.why.items() if name != "chunk_padding"}
    return chunk.model_copy(update={"sizes": {**chunk.sizes, "chunk_padding": 0}, "why": why})


def _limits(spec: ModelSpec, step: StepName, max_tokens: int, max_rows: int) -> dict[str, int]:
    seqs = spec.cache.max_sequences
    tokens = seqs if step == "decode" else max_tokens
    rows = seqs if step == "decode" else max_rows
    return {"tokens": tokens, "seqs": seqs, "seqs+1": seqs + 1, "rows": rows}


def _render_all(
    drafts: Iterable[Draft], origin: Provenance
) -> tuple[dict[Kernel, KernelEntry], dict[str, KernelSource]]:
    entries: dict[Kernel, KernelEntry] = {}
    sources: dict[str, KernelSource] = {}
    for draft in drafts:
        kernel = draft.kernel
        if kernel in entries:
            continue
        source = render(kernel, origin)
        sources[source.name] = source
        entries[kernel] = KernelEntry(
            name=source.name,
            label=kernel.label,
            file=f"kernels/{source.name}.metal",
            inputs=tuple(KernelPort(name=name, dtype=dtype) for name, dtype in kernel.inputs),
            outputs=tuple(KernelPort(name=name, dtype=dtype) for name, dtype in kernel.outputs),
            threads=kernel.threads,
            threadgroup_bytes=kernel.threadgroup_bytes,
            chosen=draft.chosen,
        )
    return entries, sources


def _launch(draft: Draft, kernel: KernelEntry) -> Launch:
    return Launch(
        op=draft.op,
        kernel=kernel.name,
        inputs=draft.inputs,
        outputs=draft.outputs,
        threadgroups=draft.threadgroups,
        when=draft.when,
        mlx=draft.mlx,
        mlx_inputs=draft.mlx_inputs,
        feeds_mlx=draft.feeds_mlx,
    )


def _weights(spec: ModelSpec, source: OpGraph, graphs: Iterable[OpGraph]) -> tuple[WeightPlan, ...]:
    """The weights that any step binds, each once, in program order."""
    plans: dict[str, WeightPlan] = {}
    for value in (v for graph in graphs for v in graph.values if v.role == "weight"):
        parts = []
        for part in value.parts:
            in_safetensors, in_gguf = recipes(spec.model, part)
            parts.append(
                TensorSource(
                    name=part,
                    shape=_numbers(source.value(part).shape),
                    safetensors=in_safetensors,
                    gguf=in_gguf,
                    format=_format_of(spec, part, value),
                )
            )
        plan = WeightPlan(value.name, _numbers(value.shape), value.dtype, tuple(parts))
        if plans.setdefault(value.name, plan) != plan:
            raise PlanError(f"the steps disagree on weight {value.name!r}: {plans[value.name]} and {plan}")
    return tuple(plans.values())


def _format_of(spec: ModelSpec, part: str, value: Value) -> WeightFormat:
    return spec.weights.of_tensor(part) if len(value.shape) == 2 else WeightFormat(str(value.dtype))


def _numbers(shape: Sequence[int | str]) -> tuple[int, ...]:
    assert all(isinstance(d, int) for d in shape), "weights have no symbolic dims"
    return tuple(int(d) for d in shape)

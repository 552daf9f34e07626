"""Makes the plan: lowers both steps, renders kernels, places activations and checks the budget."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from mlxr.compiler.arena import ArenaGeometry
from mlxr.compiler.codegen.attention_kernels import AttendPrefillKernel
from mlxr.compiler.codegen.kernels import Kernel
from mlxr.compiler.codegen.render import KernelSource, Provenance, render
from mlxr.compiler.dtypes import DType
from mlxr.compiler.errors import PlanError
from mlxr.compiler.graph import OpGraph
from mlxr.compiler.ops import Shape
from mlxr.compiler.passes.pipeline import STEPS
from mlxr.compiler.passes.pipeline import Step as StepName
from mlxr.compiler.plan.check import check_plan
from mlxr.compiler.plan.geometry import Geometry
from mlxr.compiler.plan.lower import Draft, Lowering, copy_blocks_draft
from mlxr.compiler.plan.memory import place_activations
from mlxr.compiler.plan.plan import KernelEntry, KernelPort, Launch, MemoryPlan, Plan, Step
from mlxr.compiler.plan.weights import TensorSource, WeightPlan
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.spec.names import load_tensor_names


def make_plan(
    spec: ModelSpec,
    arena: ArenaGeometry,
    source: OpGraph,
    graphs: Mapping[StepName, OpGraph],
    geometry: Geometry,
    origin: Provenance,
) -> tuple[Plan, dict[str, KernelSource]]:
    """The plan of a spec and the kernels it launches, by name.

    Args:
        spec: the spec.
        arena: its arena.
        source: the graph as built, for the shapes of the tensors in files.
        graphs: the ordered graph of each step.
        geometry: launch geometry.
        origin: what the kernels say of their origin.

    Raises:
        PlanError: no plan can be made, or it breaks a rule.
    """
    sequences = spec.cache.max_sequences
    # At least all sequences can decode in one step; at most all of them can be filled in one.
    max_tokens = max(sequences, min(spec.prefill_chunk, spec.model.context * sequences))
    max_rows = max(spec.cache.max_sequences, min(spec.prefill_chunk, 64))
    lowerings = {name: Lowering(graphs[name], name, arena, geometry) for name in STEPS}
    drafts: dict[str, list[Draft]] = {name: lowering.run() for name, lowering in lowerings.items()}
    copies = [copy_blocks_draft(arena, geometry)] if arena.max_sequences > 1 else []
    kernels, sources = _render_all(itertools.chain(*drafts.values(), copies), origin)
    prefill_tile = next(d.kernel.tile for d in drafts["prefill"] if isinstance(d.kernel, AttendPrefillKernel))
    steps = []
    for name in STEPS:
        limits = _limits(spec, name, max_tokens, max_rows, prefill_tile)
        lowering = lowerings[name]
        shapes: dict[str, tuple[Shape, DType]] = {
            v.name: (v.shape, v.dtype) for v in graphs[name].values if v.role == "activation"
        } | {s.name: (s.shape, s.dtype) for s in lowering.scratch}
        kept = [out for out in graphs[name].outputs if out in shapes]
        buffers, total = place_activations(drafts[name], shapes, limits, kept)
        launches = tuple(_launch(draft, kernels[draft.kernel]) for draft in drafts[name])
        steps.append(
            Step(
                name=name,
                launches=launches,
                buffers=tuple(buffers),
                activation_bytes=total,
                outputs=graphs[name].outputs,
            )
        )
    weights = _weights(spec, source, graphs.values())
    plan = Plan(
        steps=tuple(steps),
        copy_blocks=_launch(copies[0], kernels[copies[0].kernel]) if copies else None,
        kernels=tuple(kernels.values()),
        weights=weights,
        ignored_tensors=load_tensor_names(spec.model.tensor_names).ignored_for(spec.model),
        arena=arena,
        memory=MemoryPlan(
            weights_bytes=sum(math.prod(w.shape) * w.dtype.size_bytes for w in weights),
            arena_bytes=arena.size_bytes,
            activation_bytes=max(step.activation_bytes for step in steps),
            budget_bytes=spec.memory_budget,
        ),
        vocab_size=spec.model.vocab_size,
        num_layers=spec.model.num_layers,
        query_tile=prefill_tile,
        partition=geometry.partition,
        max_tokens=max_tokens,
        max_rows=max_rows,
    )
    check_plan(plan)
    return plan, sources


def _limits(spec: ModelSpec, step: StepName, max_tokens: int, max_rows: int, tile: int) -> dict[str, int]:
    seqs = spec.cache.max_sequences
    tokens = seqs if step == "decode" else max_tokens
    rows = seqs if step == "decode" else max_rows
    return {"tokens": tokens, "seqs": seqs, "seqs+1": seqs + 1, "rows": rows, "tiles": -(-tokens // tile) + seqs}


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
        mlx_min_rows=draft.mlx_min_rows,
    )


def _weights(spec: ModelSpec, source: OpGraph, graphs: Iterable[OpGraph]) -> tuple[WeightPlan, ...]:
    """The weights that any step binds, each once, in program order."""
    names = load_tensor_names(spec.model.tensor_names)
    attention = spec.model.attention
    plans: dict[str, WeightPlan] = {}
    for value in (v for graph in graphs for v in graph.values if v.role == "weight"):
        parts = []
        for part in value.parts:
            in_file = names.resolve(part)
            # The files' rows are interleaved pairs; a spec that rotates interleaved pairs takes them as they are.
            transform = in_file.gguf_transform if spec.model.rope.layout == "half" else None
            is_query = part.rpartition(".")[2].startswith("q")
            heads = (attention.num_heads if is_query else attention.num_kv_heads) if transform else None
            parts.append(
                TensorSource(
                    name=part,
                    shape=_numbers(source.value(part).shape),
                    safetensors=in_file.safetensors,
                    gguf=in_file.gguf,
                    gguf_transform=transform,
                    heads=heads,
                )
            )
        plan = WeightPlan(value.name, _numbers(value.shape), value.dtype, tuple(parts))
        if plans.setdefault(value.name, plan) != plan:
            raise PlanError(f"the steps disagree on weight {value.name!r}: {plans[value.name]} and {plan}")
    return tuple(plans.values())


def _numbers(shape: Sequence[int | str]) -> tuple[int, ...]:
    assert all(isinstance(d, int) for d in shape), "weights have no symbolic dims"
    return tuple(int(d) for d in shape)

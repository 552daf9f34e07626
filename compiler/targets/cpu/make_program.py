"""Makes the cpu target's part of the plan, and the translation unit that it calls."""

import itertools
from collections.abc import Mapping, Sequence

from mlxr.compiler.artifact.c_program import CpuKernelEntry, CpuLaunch, CpuProgram, CpuStep, CpuTensor
from mlxr.compiler.artifact.record import Buffer, MemoryPlan
from mlxr.compiler.artifact.weight_plan import TensorSource, WeightPlan
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.formats.weight_layout import PANEL_ROWS
from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.ir.tensor import Shape
from mlxr.compiler.passes.pipeline import STEPS
from mlxr.compiler.passes.pipeline import Step as StepName
from mlxr.compiler.schedule.memory import place_activations
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.targets.cpu.kernels.attention import CpuCopyBlocks, CpuRopeTable
from mlxr.compiler.targets.cpu.kernels.kernel import OUTPUTS, CpuKernel
from mlxr.compiler.targets.cpu.lower import CpuDraft, CpuLowering
from mlxr.compiler.targets.cpu.unit import Call, Program, Unit, name_kernels, render_unit
from mlxr.compiler.targets.metal.render import Provenance

FILE = "cpu/model.c"


def make_cpu(
    spec: ModelSpec,
    arena: ArenaGeometry,
    graphs: Mapping[StepName, OpGraph],
    weights: Sequence[WeightPlan],
    limits: Mapping[StepName, Mapping[str, int]],
    origin: Provenance,
) -> tuple[CpuProgram, str]:
    """The program and its C text.

    Args:
        spec: the spec.
        arena: its arena.
        graphs: the ordered graph of each step.
        weights: every weight that a step binds.
        limits: the largest batch of each step, by symbolic dim.
        origin: what the text says of its origin.

    Raises:
        PlanError: an op has no function, or the program breaks a rule.
    """
    max_tokens = max(step["tokens"] for step in limits.values())
    drafts = {name: CpuLowering(spec, graphs[name], name, arena, max_tokens).run() for name in STEPS}
    copies = [CpuCopyBlocks(label="copy_blocks", arena=arena)] if arena.max_sequences > 1 else []
    kernels = list(dict.fromkeys([d.kernel for d in itertools.chain(*drafts.values())]))
    names = name_kernels([*kernels, *copies])
    tensors = _tensors(weights)
    known = {tensor.name for tensor in tensors}
    steps = []
    for name in STEPS:
        logits = graphs[name].outputs[0]
        buffers, total = _place(drafts[name], graphs[name], limits[name], logits)
        _check(drafts[name], known, {b.name for b in buffers} | {logits}, logits)
        launches = tuple(
            CpuLaunch(
                op=d.op,
                kernel=names[d.kernel],
                layer=d.layer,
                inputs=d.inputs,
                outputs=d.outputs,
                needs_rows=d.needs_rows,
            )
            for d in drafts[name]
        )
        steps.append(
            CpuStep(name=name, launches=launches, buffers=tuple(buffers), activation_bytes=total, logits=logits)
        )
    shared, thread = (max(getattr(k, scratch) for k in kernels) for scratch in ("shared_bytes", "thread_bytes"))
    activation_bytes = max(step.activation_bytes for step in steps)
    places = [{b.name: b.offset_bytes for b in step.buffers} for step in steps]
    indices = {tensor.name: index for index, tensor in enumerate(tensors)}
    programs = [
        Program(
            step.name, tuple(_call(draft, kernels, names, indices, place, step.logits) for draft in drafts[step.name])
        )
        for step, place in zip(steps, places, strict=True)
    ]
    unit = Unit(
        kernels=tuple((names[kernel], kernel) for kernel in kernels),
        copy_blocks=(names[copies[0]], copies[0]) if copies else None,
        programs=tuple(programs),
        tensors=tuple(tensors),
        activation_bytes=activation_bytes,
        shared_bytes=shared,
        thread_bytes=thread,
        vocab_size=spec.model.vocab_size,
    )
    text, abi = render_unit(unit, origin)
    program = CpuProgram(
        file=FILE,
        abi=abi,
        compute=spec.compute,
        kernels=tuple(CpuKernelEntry(name=names[k], label=k.label) for k in (*kernels, *copies)),
        steps=tuple(steps),
        copy_blocks=names[copies[0]] if copies else None,
        tensors=tuple(tensors),
        shared_bytes=shared,
        thread_bytes=thread,
        memory=MemoryPlan(
            weights_bytes=sum(tensor.size_bytes for tensor in tensors),
            arena_bytes=arena.size_bytes,
            activation_bytes=activation_bytes + shared + thread,
            budget_bytes=spec.memory_budget,
        ),
    )
    return program, text


def _place(
    drafts: Sequence[CpuDraft], graph: OpGraph, limits: Mapping[str, int], logits: str
) -> tuple[list[Buffer], int]:
    """Places every buffer but the logits, which are the caller's. Activations are f32 whatever the spec says."""
    shapes: dict[str, tuple[Shape, DType]] = {
        v.name: (v.shape, DType.I32 if v.dtype is DType.I32 else DType.F32)
        for v in graph.values
        if v.role == "activation" and v.name != logits
    }
    for draft in drafts:
        if isinstance(draft.kernel, CpuRopeTable):
            shapes[draft.outputs[0]] = (("tokens", draft.kernel.rotary_dim), DType.F32)
    return place_activations(drafts, shapes, limits, ())


def _tensors(weights: Sequence[WeightPlan]) -> list[CpuTensor]:
    """Matrices by their parts in files, vectors whole."""
    found: dict[str, CpuTensor] = {}
    for weight in weights:
        if len(weight.shape) == 1:
            found[weight.name] = CpuTensor(
                name=weight.name,
                layout="vector",
                format=WeightFormat.F32,
                shape=weight.shape,
                size_bytes=4 * weight.shape[0],
                parts=weight.parts,
            )
            continue
        for part in weight.parts:
            found[part.name] = _matrix(part)
    return list(found.values())


def _matrix(part: TensorSource) -> CpuTensor:
    rows, columns = part.shape
    packed = part.format.is_quantised
    held = -(-rows // PANEL_ROWS) * PANEL_ROWS if packed else rows
    return CpuTensor(
        name=part.name,
        layout="packed" if packed else "rows",
        format=part.format,
        shape=part.shape,
        size_bytes=held * part.format.row_bytes(columns),
        parts=(part,),
    )


def _call(
    draft: CpuDraft,
    kernels: Sequence[CpuKernel],
    names: Mapping[CpuKernel, str],
    tensors: Mapping[str, int],
    places: Mapping[str, int],
    logits: str,
) -> Call:
    """A call's arguments as C text, in the order of the function's parameters."""
    inputs, outputs = iter(draft.inputs), iter(draft.outputs)
    arguments = []
    for param in draft.kernel.params:
        if param.kind == "layer":
            arguments.append(str(draft.layer))
            continue
        name = next(outputs if param.kind in OUTPUTS else inputs)
        if param.kind in ("matrix", "vector"):
            cast = "" if param.kind == "matrix" else "(const float *)"
            arguments.append(f"{cast}t[{tensors[name]}]")
        elif name == logits:
            arguments.append("b->logits")
        else:
            pointer = "int32_t *" if param.kind in ("indices", "output_indices") else "float *"
            arguments.append(f"({pointer})(a + {places[name]})")
    return Call(kernels.index(draft.kernel), names[draft.kernel], tuple(arguments), draft.op, draft.needs_rows)


def _check(drafts: Sequence[CpuDraft], tensors: set[str], buffers: set[str], logits: str) -> None:
    """What must hold of the calls, whatever made them.

    Raises:
        PlanError: a call reads what nothing made, two make one buffer, one is never read, or the logits are not made.
    """
    made: set[str] = set()
    read: set[str] = set()
    for draft in drafts:
        who = f"call of {draft.kernel.label} for {draft.op}"
        for name in draft.inputs:
            if name not in tensors and name not in made:
                raise PlanError(f"{who} reads {name!r}, which nothing made")
            read.add(name)
        for name in draft.outputs:
            if name in made or name not in buffers:
                raise PlanError(f"{who} makes {name!r}, which {'exists already' if name in made else 'has no place'}")
            made.add(name)
    if logits not in made:
        raise PlanError(f"no call makes {logits!r}")
    unused = made - read - {logits}
    if unused:
        raise PlanError(f"nothing reads {sorted(unused)[0]!r}")

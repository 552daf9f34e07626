"""Target cpu: the whole model as one C program, for host cpu.

The program reads its weights as `CTensor` records describe them. Activations are f32. Every thread makes every call and
does its share of the work, and after each call the threads wait for each other.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mlxr.compiler.artifact.c_library import CLibrary
from mlxr.compiler.artifact.chip import HalfType
from mlxr.compiler.artifact.kernel_entry import KernelEntry, KernelPort
from mlxr.compiler.artifact.program import PHASES, Program, TargetTypes
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.ir.tensor import Shape
from mlxr.compiler.schedule.kernel import Kernel
from mlxr.compiler.schedule.lowered import Lowered, LoweredPhase, LoweringInput
from mlxr.compiler.schedule.program import PlacedProgram, make_program
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.targets.cpu.calls import calls_of
from mlxr.compiler.targets.cpu.format_headers import packing
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel
from mlxr.compiler.targets.cpu.kernels.adapted_projection import adapter_formats
from mlxr.compiler.targets.cpu.kernels.collective import latest_addend
from mlxr.compiler.targets.cpu.kernels.copy_blocks import copy_blocks_launch
from mlxr.compiler.targets.cpu.lowering import CpuLowering
from mlxr.compiler.targets.cpu.tensors import c_tensors, choices_of
from mlxr.compiler.targets.cpu.unit import Unit, name_kernels, render_unit
from mlxr.compiler.targets.early import TakeKernel
from mlxr.compiler.targets.provenance import Provenance
from mlxr.compiler.targets.target import cache_type, matrix_formats

FILE = "cpu/model.c"


def cpu_types(spec: ModelSpec) -> TargetTypes:
    """The types of the C program, whose activations are always f32."""
    only_f32 = matrix_formats(spec) == {WeightFormat.F32}
    cache, why = cache_type(
        spec, DType.F32 if only_f32 else DType.F16, "as the weights" if only_f32 else "half of f32's bytes"
    )
    return TargetTypes(
        target="cpu",
        activations=DType.F32,
        cache=cache,
        activations_because="a CPU is no slower with it",
        cache_because=why,
    )


@dataclass(frozen=True)
class CpuTarget:
    """See `Target`."""

    name: str = "cpu"
    activations: tuple[str, ...] = ("f32",)

    def types(self, spec: ModelSpec, half: HalfType | None) -> TargetTypes:
        """Activations are f32 whatever the spec says."""
        return cpu_types(spec)

    def lower(self, inputs: LoweringInput) -> Lowered:
        """See `Target.lower`. Logits have no buffer: they go to the caller's memory."""
        phases = []
        for name in PHASES:
            lowering = CpuLowering(inputs, name)
            lowering.lower_ops()
            logits = inputs.graphs[name].outputs[0]
            shapes = _activations(inputs.graphs[name], logits)
            shapes |= {buffer.name: (buffer.shape, buffer.dtype) for buffer in lowering.scratch}
            addend = latest_addend(list(inputs.graphs[name].ops))
            kept = () if addend is None else (addend,)
            phases.append(LoweredPhase(name, lowering.pending, shapes, (logits,), kept=kept))
        shares = inputs.arena.mode == "paged" and any(part.group is not None for part in inputs.arena.allocations)
        adapters = adapter_formats(launch for phase in phases for launch in phase.launches)
        scratch_bytes = sum(_scratch_bytes(_c_kernels(la.body for phase in phases for la in phase.launches)))
        return Lowered(
            tuple(phases),
            (copy_blocks_launch(inputs.arena),) if shares else (),
            tensors=c_tensors(inputs.weights, choices_of(inputs.graphs.values()), adapters, inputs.spec.adapters),
            scratch_bytes=scratch_bytes,
            step_batches=2 if inputs.num_sharing > 1 and not inputs.has_stages else 1,
            batch_invariant=inputs.spec.deterministic or inputs.spec.compute == "exact",
        )

    def render(
        self, placed: PlacedProgram, inputs: LoweringInput, origin: Provenance, take_kernel: TakeKernel
    ) -> tuple[Program, dict[str, str]]:
        """One translation unit; see `Target.render`."""
        kernels, tensors = list(_c_kernels(placed.kernels)), placed.lowered.tensors
        names, counters = name_kernels(kernels), {kernel: index for index, kernel in enumerate(kernels)}
        copies = kernels.pop() if placed.lowered.copy_blocks else None
        shared_bytes, thread_bytes = _scratch_bytes(kernels)
        called = dict.fromkeys(called for kernel in kernels for called in kernel.calls)
        unit = Unit(
            called=tuple((names[kernel], kernel) for kernel in called),
            kernels=tuple((names[kernel], kernel) for kernel in kernels),
            copy_blocks=(names[copies], copies) if copies is not None else None,
            phases=calls_of(placed, names, counters),
            tensors=tensors,
            num_stores=len(inputs.arena.allocations),
            activation_bytes=placed.activation_bytes,
            shared_bytes=shared_bytes,
            thread_bytes=thread_bytes,
            vocab_size=inputs.spec.num_logits,
            step_batches=placed.lowered.step_batches,
        )
        text, abi = render_unit(unit, origin)
        library = CLibrary(
            abi=abi,
            compute=inputs.spec.compute,
            tensors=tensors,
            shared_bytes=shared_bytes,
            thread_bytes=thread_bytes,
            step_batches=placed.lowered.step_batches,
            packing=packing({tensor.format for tensor in tensors if tensor.layout == "packed"}),
        )
        launched = [*kernels, *([copies] if copies is not None else [])]
        entries: dict[Kernel, KernelEntry] = {kernel: _entry(kernel, names[kernel]) for kernel in launched}
        return make_program(placed, entries, inputs, library), {FILE: text}


def _activations(graph: OpGraph, logits: str) -> dict[str, tuple[Shape, DType]]:
    """Shape and type of the activations of a graph, except the logits."""
    return {
        value.name: (value.shape, DType.I32 if value.dtype is DType.I32 else DType.F32)
        for value in graph.values
        if value.role == "activation" and value.name != logits
    }


def _c_kernels(kernels: Iterable[object]) -> Iterator[CpuKernel]:
    for kernel in kernels:
        assert isinstance(kernel, CpuKernel), "target cpu lowers to C functions"
        yield kernel


def _scratch_bytes(kernels: Iterable[CpuKernel]) -> tuple[int, int]:
    """Scratch that the threads share, and that of each thread: the most that any kernel needs."""
    needs = [(kernel.shared_bytes, kernel.thread_bytes) for kernel in dict.fromkeys(kernels)]
    return max(shared for shared, _ in needs), max(thread for _, thread in needs)


def _entry(kernel: CpuKernel, name: str) -> KernelEntry:
    return KernelEntry(
        name=name,
        label=kernel.label,
        file=FILE,
        inputs=tuple(KernelPort(name=port, dtype=dtype) for port, dtype in kernel.inputs),
        outputs=tuple(KernelPort(name=port, dtype=dtype) for port, dtype in kernel.outputs),
    )

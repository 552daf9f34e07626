"""Target metal: one Metal file for each kernel, for hosts metal, cuda and sim."""

from collections.abc import Sequence
from dataclasses import dataclass

from mlxr.compiler.artifact.chip import HalfType
from mlxr.compiler.artifact.kernel_entry import KernelEntry, KernelPort
from mlxr.compiler.artifact.library_call import WeightCast
from mlxr.compiler.artifact.program import PHASES, Program, TargetTypes
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.schedule.geometry import StepKernelSizes
from mlxr.compiler.schedule.geometry_rules import Choice
from mlxr.compiler.schedule.kernel import Kernel
from mlxr.compiler.schedule.lowered import Lowered, LoweredPhase, LoweringInput
from mlxr.compiler.schedule.pending_launch import PendingLaunch
from mlxr.compiler.schedule.program import PlacedProgram, make_program
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.targets.early import TakeKernel
from mlxr.compiler.targets.metal.decode_kernel.make_step_kernels import with_step_kernels
from mlxr.compiler.targets.metal.kernel_parts.kernel import MetalKernel
from mlxr.compiler.targets.metal.kernels.attend_latent import AttendLatentKernel
from mlxr.compiler.targets.metal.kernels.attend_latent_mma import AttendLatentMmaKernel
from mlxr.compiler.targets.metal.kernels.attend_prefill import with_batch_tile
from mlxr.compiler.targets.metal.kernels.copy_blocks import copy_blocks_launches
from mlxr.compiler.targets.metal.lowering import MetalLowering
from mlxr.compiler.targets.metal.merge_unpacks import merge_unpacks
from mlxr.compiler.targets.metal.render import render
from mlxr.compiler.targets.metal.types import metal_types
from mlxr.compiler.targets.provenance import Provenance

_LATENT_KERNELS = (AttendLatentKernel, AttendLatentMmaKernel)
"""Kernels that fix the tokens of a tile, other than those of keys and values."""


@dataclass(frozen=True)
class MetalTarget:
    """See `Target`."""

    name: str = "metal"
    activations: tuple[str, ...] = ()

    def types(self, spec: ModelSpec, half: HalfType | None) -> TargetTypes:
        """16-bit types, unless the spec names others or all weights are f32."""
        return metal_types(spec, half)

    def lower(self, inputs: LoweringInput) -> Lowered:
        """See `Target.lower`."""
        whole = _step_choice(inputs)
        phases: list[LoweredPhase] = []
        query_tile: int | None = None
        casts: dict[str, WeightCast] = {}
        for name in PHASES:
            lowering = MetalLowering(inputs, name, one_kernel=whole.geometry.step.threads > 0)
            lowering.lower_ops()
            graph = inputs.graphs[name]
            shapes = {v.name: (v.shape, v.dtype) for v in graph.values if v.role == "activation"}
            shapes |= {buffer.name: (buffer.shape, buffer.dtype) for buffer in lowering.scratch}
            chosen = whole.sizes(StepKernelSizes) if name == "decode" else None
            casts |= lowering.casts
            launches: Sequence[PendingLaunch] = lowering.pending
            if name == "prefill":
                launches, query_tile = with_batch_tile(launches)
                latent = (launch.body.tile for launch in launches if isinstance(launch.body, _LATENT_KERNELS))
                query_tile = next(latent, query_tile)
            phases.append(LoweredPhase(name, merge_unpacks(launches), shapes, graph.outputs, chosen))
        return Lowered(
            tuple(phases),
            copy_blocks_launches(inputs.arena),
            query_tile=query_tile,
            casts=tuple(casts.values()),
            batch_invariant=inputs.spec.deterministic,
        )

    def render(
        self, placed: PlacedProgram, inputs: LoweringInput, origin: Provenance, take_kernel: TakeKernel
    ) -> tuple[Program, dict[str, str]]:
        """One file for each kernel, and one for each decode step that becomes one kernel; see `Target.render`."""
        entries: dict[Kernel, KernelEntry] = {}
        texts: dict[str, str] = {}
        for kernel, launch in placed.kernels.items():
            assert isinstance(kernel, MetalKernel), "this target lowers to these"
            source = render(kernel, origin)
            texts[source.name] = source.text
            entries[kernel] = KernelEntry(
                name=source.name,
                label=kernel.label,
                file=_file(source.name),
                inputs=tuple(KernelPort(name=name, dtype=dtype) for name, dtype in kernel.inputs),
                outputs=tuple(KernelPort(name=name, dtype=dtype) for name, dtype in kernel.outputs),
                threads=kernel.threads,
                threadgroup_bytes=kernel.threadgroup_bytes,
                cluster=kernel.cluster,
                chosen=launch.chosen,
            )
            take_kernel(entries[kernel], source.text)
        program = make_program(placed, entries, inputs)
        program, steps = with_step_kernels(program, texts, inputs, _step_choice(inputs).geometry.step)
        return program, {_file(name): text for name, text in texts.items()} | steps


def _file(kernel: str) -> str:
    return f"kernels/{kernel}.metal"


def _step_choice(inputs: LoweringInput) -> Choice:
    """The geometry of a whole decode step."""
    model = inputs.spec.model
    matrices = [weight.layout for weight in inputs.weights if len(weight.shape) == 2]
    has_experts = any(layer.mlp is not None and layer.mlp.experts is not None for layer in model.layers)
    return inputs.table.choose(Site.of_step(model.num_layers, model.hidden_size, matrices, has_experts=has_experts))

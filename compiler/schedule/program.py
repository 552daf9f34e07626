"""From lowered launches to a program: buffers get their places, then kernels get their names, from their texts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from mlxr.compiler.artifact.c_library import CLibrary
from mlxr.compiler.artifact.kernel_entry import KernelEntry
from mlxr.compiler.artifact.program import Buffer, MemoryPlan, Phase, Program
from mlxr.compiler.schedule.kernel import Kernel
from mlxr.compiler.schedule.lowered import Lowered, LoweredPhase, LoweringInput
from mlxr.compiler.schedule.memory import place_activations
from mlxr.compiler.schedule.pending_launch import PendingLaunch

DEFAULT_QUERY_TILE = 32
"""Tokens in a tile of queries if no kernel fixes the number: batches are always laid out in tiles."""


@dataclass(frozen=True)
class PlacedPhase:
    """A phase whose buffers have places; see `Phase`."""

    lowered: LoweredPhase
    buffers: tuple[Buffer, ...]
    activation_bytes: int


@dataclass(frozen=True)
class PlacedProgram:
    """A lowered program whose buffers have places, ready to be rendered."""

    lowered: Lowered
    phases: tuple[PlacedPhase, ...]

    @cached_property
    def kernels(self) -> Mapping[Kernel, PendingLaunch]:
        """Each kernel with its first launch, in the order of these launches; the one that copies blocks comes last."""
        first: dict[Kernel, PendingLaunch] = {}
        for launch in self._launches():
            if isinstance(launch.body, Kernel):
                first.setdefault(launch.body, launch)
        return first

    @property
    def activation_bytes(self) -> int:
        """Activation memory of the larger phase."""
        return max(phase.activation_bytes for phase in self.phases)

    def _launches(self) -> Iterator[PendingLaunch]:
        for phase in self.phases:
            yield from phase.lowered.launches
        yield from self.lowered.copy_blocks


def place(lowered: Lowered, inputs: LoweringInput) -> PlacedProgram:
    """Places every buffer in its phase's activation memory."""
    tile = lowered.query_tile or DEFAULT_QUERY_TILE
    phases = []
    for phase in lowered.phases:
        limits = inputs.limits[phase.name]
        tiles = -(-limits["tokens"] // tile) + limits["seqs"]
        sizes = {**limits, "tiles": tiles, "context": inputs.arena.context}
        kept = [name for name in (*phase.outputs, *phase.kept) if name in phase.shapes]
        buffers, total = place_activations(phase.launches, phase.shapes, sizes, kept)
        phases.append(PlacedPhase(phase, tuple(buffers), total))
    return PlacedProgram(lowered, tuple(phases))


def make_program(
    placed: PlacedProgram,
    kernels: Mapping[Kernel, KernelEntry],
    inputs: LoweringInput,
    library: CLibrary | None = None,
) -> Program:
    """The program as the plan has it.

    Args:
        placed: the launches, with the places of their buffers.
        kernels: the entry of each kernel of `PlacedProgram.kernels`, in that order.
        inputs: the input of the lowering.
        library: what else the runtime needs to call a C program; None for other programs.
    """
    lowered, names = placed.lowered, {kernel: entry.name for kernel, entry in kernels.items()}
    return Program(
        types=inputs.types,
        phases=tuple(_phase(phase, names) for phase in placed.phases),
        kernels=tuple({entry.name: entry for entry in kernels.values()}.values()),  # arenas of equal code differ
        copy_blocks=tuple(launch.named(names) for launch in lowered.copy_blocks),
        arena=inputs.arena,
        memory=MemoryPlan(
            weights_bytes=sum(weight.size_bytes for weight in lowered.tensors or inputs.weights),
            arena_bytes=inputs.arena.size_bytes,
            activation_bytes=placed.activation_bytes * lowered.step_batches + lowered.scratch_bytes,
            budget_bytes=inputs.budget,
            handover_bytes=0,
        ),
        casts=lowered.casts,
        batch_invariant=lowered.batch_invariant,
        library=library,
    )


def _phase(placed: PlacedPhase, names: Mapping[Kernel, str]) -> Phase:
    lowered = placed.lowered
    return Phase(
        name=lowered.name,
        launches=tuple(launch.named(names) for launch in lowered.launches),
        buffers=placed.buffers,
        activation_bytes=placed.activation_bytes,
        outputs=lowered.outputs,
        chosen=lowered.chosen,
    )

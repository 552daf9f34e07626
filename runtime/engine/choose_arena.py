"""Chooses the arena to allocate, once it is certain that the model fits into the memory that is free now."""

from typing import NamedTuple

from mlxr.compiler.artifact import ArenaGeometry, Artifact, size
from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.entry import HostEntry
from mlxr.runtime.memory.fitting_arena import fitting_arena
from mlxr.runtime.memory.free_memory import FreeMemory, MachineMemory
from mlxr.runtime.weights.weight_file import WeightFile


class ChosenArena(NamedTuple):
    """The arena to allocate.

    Attributes:
        geometry: the plan's, perhaps with fewer blocks.
        notes: what people should know about memory, as in `Host.notes`.
    """

    geometry: ArenaGeometry
    notes: tuple[str, ...]


def choose_arena(
    artifact: Artifact,
    file: WeightFile,
    entry: HostEntry,
    *,
    threads: int | None = None,
    tier_memory: int = 0,
    shrink: bool = False,
    most_bytes: int | None = None,
) -> ChosenArena:
    """The arena to allocate for a model on a host; nothing is loaded yet.

    Args:
        artifact: the compiled model.
        file: its weights.
        entry: the host.
        threads: how many threads host cpu runs; None: as many as it chooses.
        tier_memory: bytes of the machine's memory that the cache will use besides the arena.
        shrink: whether the arena may be smaller than the plan's, see `fitting_arena`.
        most_bytes: memory that the model may take, mapped weights included; None: what is free.

    Raises:
        WeightsError: the weights are of another model.
        HostError: there is too little memory.
    """
    host, plan = entry.load(), artifact.plan
    footprint, free = host.footprint(artifact, file, threads), host.free_memory()
    if most_bytes is not None and most_bytes < free.free_bytes:
        free = FreeMemory(most_bytes, most_bytes, "what models may take here")
    if host.has_own_memory:
        machine = MachineMemory().read()
        if tier_memory > machine.free_bytes:
            raise HostError(
                f"the cache's tier in memory takes {size(tier_memory)}, but {machine.owner} has "
                f"{size(machine.free_bytes)} of {size(machine.total_bytes)} free now: make the tier smaller"
            )
        tier_memory = 0
    arena = fitting_arena(
        artifact.spec.name,
        plan,
        entry.target_among(plan.targets),
        footprint,
        free,
        tier_bytes=tier_memory,
        shrink=shrink,
    )
    notes = []
    planned = plan.programs[entry.target_among(plan.targets)].arena
    if arena != planned:
        notes.append(
            f"the cache has room for {arena.num_blocks * arena.block_size} tokens, not for all of "
            f"{planned.num_blocks * planned.block_size}: {free.owner} has {size(free.free_bytes)} of memory free"
        )
    left = free.free_bytes - footprint.weights_bytes - footprint.activation_bytes - tier_memory - arena.size_bytes
    if footprint.mapped_bytes > left:
        notes.append(
            f"{size(footprint.mapped_bytes)} of weights are mapped from their file, but only {size(left)} of memory "
            "are free for them: they will be read from the disk again and again; close other programs"
        )
    return ChosenArena(arena, tuple(notes))

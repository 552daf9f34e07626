"""Chooses the arena to allocate, once it is certain that the model fits into the memory that is free now."""

import logging
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import ArenaGeometry, Artifact, size
from mlxr.compiler.errors import HostError, blaming_head
from mlxr.runtime.engine.choose_resident import maps_weights, resident_bytes, speed_line
from mlxr.runtime.hosts.entry import HostEntry
from mlxr.runtime.hosts.host import Host
from mlxr.runtime.memory.fitting_arena import ContextLimit, Footprint, block_bytes, fitting_arena, least_arena
from mlxr.runtime.memory.free_memory import FreeMemory, MachineMemory
from mlxr.runtime.memory.mmap_choice import Mmap
from mlxr.runtime.weights.weight_file import WeightFile

_LOG = logging.getLogger(__name__)


class Head(NamedTuple):
    """A head that guesses for a model.

    Attributes:
        artifact: the compiled head.
        file: with its weights and the model's.
        ids: of each token that it may guess, the model's id; None: they are the same.
    """

    artifact: Artifact
    file: WeightFile
    ids: npt.NDArray[np.int32] | None = None


class ChosenArena(NamedTuple):
    """The arena to allocate.

    Attributes:
        geometry: the plan's, perhaps with another number of blocks and a shorter context.
        limit: its context, and why it is that.
        notes: what people should know about memory, as in `Host.notes`.
        resident: see `Host.from_file`.
    """

    geometry: ArenaGeometry
    limit: ContextLimit
    notes: tuple[str, ...]
    resident: int | None


def choose_arena(
    artifact: Artifact,
    file: WeightFile,
    entry: HostEntry,
    *,
    threads: int | None = None,
    tier_memory: int = 0,
    shrink: bool = False,
    most_bytes: int | None = None,
    mmap: Mmap = "auto",
    needed_context: int = 1,
    head: Head | None = None,
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
        mmap: whether packed weights are mapped from a file of the cache, on a host that packs them.
        needed_context: tokens that a sequence must be able to have, where the spec leaves the context to memory.
        head: the head that guesses for the model; None: there is none.

    Raises:
        WeightsError: the weights are of another model.
        HostError: there is too little memory.
    """
    host, plan = entry.load(), artifact.plan
    free = host.free_memory()
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
    target = entry.target_among(plan.targets)
    footprint = footprint_of(host, artifact, file, threads, head)
    others = footprint.activation_bytes + tier_memory + least_arena(artifact, target, needed_context).size_bytes
    fits = footprint.weights_bytes + others <= free.free_bytes
    if maps := maps_weights(host, artifact, file, mmap, fits=fits, threads=threads):
        footprint = footprint_of(host, artifact, file, threads, head, resident=0)
    with nullcontext() if head is None else blaming_head():  # without it, there would be more room
        arena = fitting_arena(
            artifact,
            target,
            footprint,
            free,
            tier_bytes=tier_memory,
            shrink=shrink,
            needed_context=needed_context,
        )
    notes, planned = [], plan.programs[target].arena
    limit = _limit(artifact, arena, footprint, free)
    if limit.is_cut:
        notes.append(str(limit))
    elif arena.num_blocks < planned.num_blocks:
        notes.append(
            f"the cache has room for {arena.num_blocks * arena.block_size} tokens, not for all of "
            f"{planned.num_blocks * planned.block_size}: {free.owner} has {size(free.free_bytes)} of memory free"
        )
    left = free.free_bytes - footprint.weights_bytes - footprint.activation_bytes - tier_memory - arena.size_bytes
    resident = resident_bytes(artifact, target, footprint, left) if maps else None
    if resident:
        before, footprint = footprint, footprint_of(host, artifact, file, threads, head, resident=resident)
        left -= footprint.weights_bytes - before.weights_bytes
    if maps and (line := speed_line(artifact, target, footprint, free, left, threads)) is not None:
        _LOG.warning("note: %s", line)
    if footprint.mapped_bytes > left:
        notes.append(
            f"{size(footprint.mapped_bytes)} of weights are mapped from their file, but only {size(left)} of memory "
            "are free for them: they will be read from the disk again and again; close other programs"
        )
    return ChosenArena(arena, limit, tuple(notes), resident)


def footprint_of(
    host: type[Host],
    artifact: Artifact,
    file: WeightFile,
    threads: int | None,
    head: Head | None,
    *,
    resident: int | None = None,
) -> Footprint:
    """What a model and its head, if it has one, take on a host; of the same weights there is one copy."""
    model = host.footprint(artifact, file, threads, resident=resident)
    if head is None:
        return model
    own = host.footprint(head.artifact, head.file, threads, resident=resident and 0)
    shared = sum(weight.size_bytes for weight in head.artifact.plan.weights if weight in artifact.plan.weights)
    weights = max(0, own.weights_bytes - shared)
    mapped = max(0, own.mapped_bytes - max(0, shared - own.weights_bytes))
    activations = model.activation_bytes + own.activation_bytes
    return Footprint(model.weights_bytes + weights, model.mapped_bytes + mapped, activations)


def _limit(artifact: Artifact, arena: ArenaGeometry, footprint: Footprint, free: FreeMemory) -> ContextLimit:
    """Why the arena has its context."""
    spec, own, tokens = artifact.spec, artifact.spec.model.context, arena.context
    if spec.cache.least_context is None:
        return ContextLimit(tokens, own)
    if tokens == own:
        return ContextLimit(tokens, own, "all that the model has", "")
    token = f"a token of the cache takes {size(block_bytes(arena) // arena.block_size)}"
    smaller = "" if str(arena.cache_type) in ("q8", "q4") else ", with a smaller cache (--kv q8; in Python cache_dtype)"
    if tokens == artifact.plan.arena.context:
        why = f"{token}, and the cache was given {size(artifact.plan.arena.size_bytes)}"
        return ContextLimit(tokens, own, why, f"give the cache more memory{smaller}")
    weights = size(footprint.weights_bytes + footprint.mapped_bytes)
    why = f"{free.owner} has {size(free.free_bytes)} of memory free, the weights take {weights}, and {token}"
    return ContextLimit(tokens, own, why, f"load the model while more memory is free{smaller}")

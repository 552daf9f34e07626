"""The arena to allocate for a model on this machine now, or an error that says what would fit.

What must fit: weights that the host allocates, arena, activations, and the cache's tier in memory. Weights that stay
mapped from their file need not, because the system can drop their pages and read them again; see `Footprint`.
"""

from collections.abc import Iterator
from dataclasses import replace

from mlxr.compiler.artifact import ArenaGeometry, Plan, size
from mlxr.compiler.errors import HostError
from mlxr.runtime.memory.footprint import Footprint
from mlxr.runtime.memory.free_memory import FreeMemory

SHARE = 0.75
"""Most of the free memory, after all else, that an arena takes which may be smaller than planned."""


def fitting_arena(
    name: str,
    plan: Plan,
    target: str,
    footprint: Footprint,
    free: FreeMemory,
    *,
    tier_bytes: int = 0,
    shrink: bool = False,
) -> ArenaGeometry:
    """The arena to allocate: the plan's, or one of fewer blocks.

    Args:
        name: the model's name.
        plan: its plan.
        target: the target whose program runs.
        footprint: what it takes besides the arena.
        free: the memory that arena, weights and activations will be in.
        tier_bytes: what else will be used of that memory.
        shrink: whether the arena may be smaller than the plan's, if it holds a sequence of full context. It then takes
            at most `SHARE` of what is free, so that mapped weights and other programs keep some.

    Raises:
        HostError: there is too little memory. The message says what needs how much, and what would fit.
    """
    arena = plan.programs[target].arena
    others = footprint.weights_bytes + footprint.activation_bytes + tier_bytes
    if shrink and has_free_size(arena):
        room = int(SHARE * (free.free_bytes - others - footprint.mapped_bytes))
        blocks = max(arena.max_blocks_per_sequence, room // block_bytes(arena))
        arena = replace(arena, num_blocks=min(arena.num_blocks, blocks))
    if others + arena.size_bytes <= free.free_bytes:
        return arena
    needed = others + arena.size_bytes
    parts = (
        ("weights", footprint.weights_bytes),
        (f"an arena of {arena.num_blocks * arena.block_size} tokens", arena.size_bytes),
        ("activations", footprint.activation_bytes),
        ("the cache's tier in memory", tier_bytes),
    )
    told = ", ".join(f"{part} {size(part_bytes)}" for part, part_bytes in parts if part_bytes)
    shrunk = arena.num_blocks < plan.arena.num_blocks
    ways = list(_ways(plan, arena, max(0, free.free_bytes - others), shrunk=shrunk))
    if needed - tier_bytes <= free.free_bytes:
        ways.append(f"a tier in memory of {size(free.free_bytes - needed + tier_bytes)}")
    fits = " or ".join(ways) if ways else "nothing: close other programs, or use smaller weight formats"
    raise HostError(
        f"{name} needs {size(needed)} ({told}), but {free.owner} has {size(free.free_bytes)} of "
        f"{size(free.total_bytes)} free now; the largest that fits: {fits}"
    )


def has_free_size(arena: ArenaGeometry) -> bool:
    """Whether the arena may have another number of blocks than the plan says, because no kernel depends on it."""
    return arena.mode == "paged" and arena.layout == "block"


def least_arena(arena: ArenaGeometry) -> ArenaGeometry:
    """The smallest arena that may take its place: of one sequence of full context."""
    if not has_free_size(arena):
        return arena
    return replace(arena, num_blocks=min(arena.num_blocks, arena.max_blocks_per_sequence))


def block_bytes(arena: ArenaGeometry) -> int:
    """Bytes of a block, K and V of all layers."""
    return arena.size_bytes // arena.num_blocks


def _ways(plan: Plan, arena: ArenaGeometry, room: int, *, shrunk: bool) -> Iterator[str]:
    """What fits into so many bytes for the arena: the longest context, the most sequences, the largest cache.

    Activations are counted as they are planned now. They need less with smaller dims.
    """
    context, sequences = arena.context, arena.max_sequences
    blocks = min(room // block_bytes(arena), arena.num_blocks - 1)
    most = blocks // arena.max_blocks_per_sequence
    # The option counts the blocks of the target whose cache has the widest type.
    cache = blocks * max(block_bytes(program.arena) for program in plan.programs.values())
    if plan.arena.num_blocks != arena.max_blocks_per_sequence * sequences:  # its size was asked for
        shorter = "" if most else f" with context {blocks * arena.block_size}"
        if blocks:
            yield f"a cache of {size(cache)}{shorter} (mlxr.Changes(cache_memory={cache}), cache.num_blocks {blocks})"
        return
    for count in (1,) if shrunk else (sequences, 1):
        if longest := blocks // count * arena.block_size:
            for_all = "" if shrunk else f" with max_sequences {count}"
            yield f"context {longest} (--context {longest}, mlxr.Changes(context={longest})){for_all}"
            break
    if most and sequences > 1:
        yield f"max_sequences {most} (mlxr.Changes(sequences={most}), cache.max_sequences) with context {context}"
        yield f"a cache of {size(cache)} for {sequences} sequences (mlxr.Changes(cache_memory={cache}))"

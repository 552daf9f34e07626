"""The arena to allocate for a model on this machine now, or an error that says what would fit.

What must fit: weights that the host allocates, arena, activations, and the cache's tier in memory. Weights that stay
mapped from their file need not, because the system can drop their pages and read them again; see `Footprint`.

A spec with `cache.least_context` leaves the context to memory: a sequence may be as long as the arena has room for.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mlxr.compiler.artifact import ArenaGeometry, Artifact, size
from mlxr.compiler.errors import HostError
from mlxr.runtime.memory.free_memory import FreeMemory

SHARE = 0.75
"""Most of the free memory, after all else, that an arena takes which may be smaller than planned, unless it needs more
for a context of `GOOD_CONTEXT`."""
_ROUND = 1024
"""A context that memory decides is a multiple of this, if it is longer than a good one."""
GOOD_CONTEXT = 8192
"""A context that memory decides is this or longer where that fits at all, and people are told where it is not."""
_LONGER = "load the model with a longer context (--context N; in Python changes=mlxr.Changes(context=N))"


@dataclass(frozen=True)
class ContextLimit:
    """The context of a loaded model.

    Attributes:
        tokens: most tokens of a sequence, prompt and answer.
        own: most that the model was compiled for.
        why: what decides the number, for people.
        remedy: what makes it longer, for people; empty: nothing does.
    """

    tokens: int
    own: int
    why: str = "as the model was compiled"
    remedy: str = _LONGER

    def __str__(self) -> str:
        """For people: `context 32,768 of the model's own 131,072: this machine has ...`."""
        if self.tokens < self.own:
            return f"context {self.tokens:,} of the model's own {self.own:,}: {self.why}"
        return f"context {self.tokens:,}, {self.why}"

    @property
    def is_cut(self) -> bool:
        """Whether it is less than the model has."""
        return self.tokens < self.own


def context_line(limit: ContextLimit, arena: ArenaGeometry, takes_pages: bool) -> str:
    """For people: `context 131,072, all that the model has; the cache takes memory as it is used, up to 4.0 GiB`.

    Args:
        limit: of the context.
        arena: of the model.
        takes_pages: as `Arena.takes_pages` says.
    """
    if not arena.size_bytes:
        return f"{limit}; nothing is cached"
    memory = size(arena.size_bytes)
    if takes_pages:
        return f"{limit}; the cache takes memory as it is used, up to {memory}"
    return f"{limit}; the cache takes {memory}"


@dataclass(frozen=True)
class Footprint:
    """Bytes that a model takes besides its arena, known before it is loaded.

    Attributes:
        weights_bytes: weights in memory that the host allocates.
        mapped_bytes: weights that stay mapped from their file. The system counts their pages as free, because it can
            take them back at any time and read them again; a host that lacks memory for them is slow, but runs.
        activation_bytes: activations of the largest step, scratch of all threads, and what recorded steps have.
    """

    weights_bytes: int
    mapped_bytes: int
    activation_bytes: int


def fitting_arena(
    artifact: Artifact,
    target: str,
    footprint: Footprint,
    free: FreeMemory,
    *,
    tier_bytes: int = 0,
    shrink: bool = False,
    needed_context: int = 1,
) -> ArenaGeometry:
    """The arena to allocate: the plan's, or one of another number of blocks, and perhaps of a shorter context.

    Args:
        artifact: the compiled model.
        target: the target whose program runs.
        footprint: what it takes besides the arena.
        free: the memory that arena, weights and activations will be in.
        tier_bytes: what else will be used of that memory.
        shrink: whether the arena may be smaller than the plan's, if it holds one sequence. It then takes at most
            `SHARE` of what is free, so that mapped weights and other programs keep some. So does an arena whose context
            is left to memory, which without `shrink` holds all sequences with the least context.
        needed_context: tokens that a sequence must be able to have, where the context is left to memory.

    Raises:
        HostError: there is too little memory. The message says what needs how much, and what would fit.
    """
    plan, spec = artifact.plan, artifact.spec
    arena = plan.programs[target].arena
    others = footprint.weights_bytes + footprint.activation_bytes + tier_bytes
    left = free.free_bytes - others
    spare = left - arena.fixed_bytes
    if (shrink or spec.cache.least_context is not None) and has_free_size(arena):
        room, share = (int(part) // block_bytes(arena) for part in (spare, SHARE * (spare - footprint.mapped_bytes)))
        sequences = 1 if shrink else arena.max_sequences
        least, good, most = _blocks(artifact, arena, needed_context, sequences)
        blocks = min(most, max(share, min(room, good), least))
        arena = arena.with_blocks(blocks, _context(arena, blocks, needed_context))
    if arena.size_bytes <= left:
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
    ways = list(_ways(artifact, arena, max(0, left), shrunk=shrunk))
    if needed - tier_bytes <= free.free_bytes:
        ways.append(f"a tier in memory of {size(free.free_bytes - needed + tier_bytes)}")
    fits = " or ".join(ways) if ways else "nothing: close other programs, or use smaller weight formats"
    raise HostError(
        f"{spec.name} needs {size(needed)} ({told}), but {free.owner} has {size(free.free_bytes)} of "
        f"{size(free.total_bytes)} free now; the largest that fits: {fits}"
    )


def has_free_size(arena: ArenaGeometry) -> bool:
    """Whether the arena may have another number of blocks than the plan says, because no kernel depends on it."""
    return arena.layout == "block"


def least_arena(artifact: Artifact, target: str, tokens: int = 1) -> ArenaGeometry:
    """The smallest arena that may take the place of the plan's: of one sequence, of the least context.

    Args:
        artifact: the compiled model.
        target: the target whose program runs.
        tokens: the context is at least this, where it is left to memory, or all that the model has.
    """
    arena = artifact.plan.programs[target].arena
    if not has_free_size(arena):
        return arena
    least, _, most = _blocks(artifact, arena, tokens, 1)
    return arena.with_blocks(min(most, least))


def block_bytes(arena: ArenaGeometry) -> int:
    """Bytes of a block, of all stores and layers that keep all tokens."""
    return max(1, arena.block_bytes)


def of_blocks(arena: ArenaGeometry, blocks: int) -> ArenaGeometry:
    """The arena with fewer blocks, and as long a context as they have room for."""
    return arena.with_blocks(blocks, min(arena.context, blocks * arena.block_size))


def _blocks(artifact: Artifact, arena: ArenaGeometry, needed: int, sequences: int) -> tuple[int, int, int]:
    """How many blocks the arena must have, how many it should have whatever the share, and how many are enough."""
    cache = artifact.spec.cache
    least = arena.context if cache.least_context is None else min(cache.least_context, arena.context)
    good = least if cache.least_context is None else min(max(least, GOOD_CONTEXT), arena.context)
    is_sized = cache.num_blocks is not None or cache.memory_budget is not None
    needed = 1 if is_sized else min(needed, arena.context)
    must, should, enough = (sequences * -(-max(n, needed) // arena.block_size) for n in (least, good, needed))
    most = arena.num_blocks if is_sized else max(arena.num_blocks, enough)
    return min(must, most), min(should, most), most


def _context(arena: ArenaGeometry, blocks: int, needed: int) -> int:
    """The context of a sequence that so many blocks have room for."""
    context = blocks * arena.block_size
    if context >= arena.context:
        return arena.context
    return max(context - context % _ROUND, needed) if context > GOOD_CONTEXT else context


def _ways(artifact: Artifact, arena: ArenaGeometry, room: int, *, shrunk: bool) -> Iterator[str]:
    """What fits into so many bytes for the arena: the longest context, the most sequences, the largest cache.

    Activations are counted as they are planned now. They need less with smaller dims.
    """
    plan, cache = artifact.plan, artifact.spec.cache
    context, sequences = arena.context, arena.max_sequences
    blocks = min(max(0, room - arena.fixed_bytes) // block_bytes(arena), arena.num_blocks - 1)
    most = blocks // -(-context // arena.block_size)
    # The option counts the blocks of the target whose cache has the widest type.
    memory = max(blocks * block_bytes(p.arena) + p.arena.fixed_bytes for p in plan.programs.values())
    if cache.num_blocks is not None or cache.memory_budget is not None:
        shorter = "" if most else f" with context {blocks * arena.block_size}"
        if blocks:
            yield f"a cache of {size(memory)}{shorter} (mlxr.Changes(cache_memory={memory}), cache.num_blocks {blocks})"
        return
    for count in (1,) if shrunk else (sequences, 1):
        if longest := blocks // count * arena.block_size:
            for_all = "" if shrunk else f" with max_sequences {count}"
            yield f"context {longest} (--context {longest}, mlxr.Changes(context={longest})){for_all}"
            break
    if most and sequences > 1:
        yield f"max_sequences {most} (mlxr.Changes(sequences={most}), cache.max_sequences) with context {context}"
        yield f"a cache of {size(memory)} for {sequences} sequences (mlxr.Changes(cache_memory={memory}))"

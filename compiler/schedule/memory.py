"""The static memory plan: the sizes of arena and batches, and the places of activations."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mlxr.compiler.artifact.chosen_geometry import ChosenGeometry
from mlxr.compiler.artifact.phase_name import PhaseName
from mlxr.compiler.artifact.record import Buffer
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.errors import BudgetError
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import Group, Store, StoreRow, cache_row_bytes, keys_and_values
from mlxr.compiler.ir.tensor import Shape
from mlxr.compiler.schedule.geometry import ArenaSizes, ChunkSizes
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.schedule.pending_launch import PendingLaunch
from mlxr.compiler.spec.fields import INT32_MAX
from mlxr.compiler.spec.model import ModelSpec

ALIGNMENT = 256
_SPARE_SLOTS = 4
_SNAPSHOT_TOKENS = 1024
"""Tokens of a sequence from one snapshot of its state to the next."""


def arena_geometry(spec: ModelSpec, table: GeometryTable, caches: Sequence[DType] = ()) -> ArenaGeometry:
    """Sizes of the arena.

    Args:
        spec: the spec.
        table: chooses between a paged and a contiguous arena, where the spec leaves it open.
        caches: the cache types of all targets. All targets get the same number of blocks, and none exceeds the budget.

    Raises:
        BudgetError: the arena cannot hold even one sequence, of full context or of the least.
    """
    cache, model, context = spec.cache, spec.model, spec.model.context
    per_sequence, least = -(-context // cache.block_size), -(-spec.least_context // cache.block_size)
    row_bytes = max(cache_row_bytes(dtype, model.attention.head_dim) for dtype in (DType(cache.dtype), *caches))
    block_bytes = 2 * model.num_layers * cache.block_size * model.attention.num_kv_heads * row_bytes
    stores = stores_of(spec)
    state_bytes = sum(_state_bytes(store) for store in stores if store.scope == "sequence")
    num_slots = _num_slots(cache.max_sequences) if state_bytes else 0
    most = per_sequence * cache.max_sequences
    if spec.output == "hidden":  # a prompt leaves when it is read: room for the longest, and for what two steps read
        chunk = chunk_tokens(spec, chunk_choice(spec, table))
        most = min(most, per_sequence + cache.max_sequences - 1 + -(-2 * chunk // cache.block_size))
    blocks = cache.num_blocks or min(most, spec.usual_blocks)
    if cache.memory_budget is not None:
        blocks = min(most, max(0, cache.memory_budget - num_slots * state_bytes) // block_bytes)
    if blocks < least:
        limit = "cache.num_blocks" if cache.num_blocks else "cache.memory_budget"
        raise BudgetError(
            f"{limit} gives {blocks} blocks of {cache.block_size} tokens, but one sequence of context "
            f"{spec.least_context} needs {least}; the largest context that fits is {blocks * cache.block_size}, with 1 "
            "sequence"
        )
    if blocks < per_sequence:
        per_sequence, context = blocks, blocks * cache.block_size
    contiguous, layers = cache.mode == "contiguous", tuple(range(model.num_layers))
    arena = ArenaGeometry(
        layout=cache.layout,
        mode="contiguous" if contiguous else "paged",
        block_size=cache.block_size,
        max_sequences=cache.max_sequences,
        context=context,
        stores=stores,
        groups=(Group(layers, per_sequence if contiguous else blocks, per_sequence),),
        num_slots=num_slots,
        snapshot_tokens=_SNAPSHOT_TOKENS if num_slots else 0,
    )
    chosen = arena_choice(spec, arena, table)
    if chosen and context <= chosen.sizes["contiguous_context"]:
        arena = replace(arena, mode="contiguous")
    return arena


def stores_of(spec: ModelSpec) -> tuple[Store, ...]:
    """Everything that the model keeps between steps."""
    attention, dtype = spec.model.attention, DType(spec.cache.dtype)
    rows = [StoreRow((attention.num_kv_heads, attention.head_dim), dtype)] * spec.model.num_layers
    stores = [*keys_and_values(rows)]
    return tuple(stores)


def _state_bytes(store: Store) -> int:
    """Bytes of a slot of a store of scope `sequence`."""
    return sum(row.size_bytes for row in store.rows if isinstance(row, StoreRow))


def _num_slots(max_sequences: int) -> int:
    """Slots of states: each sequence needs two; as many more, and a few, are for snapshots and for guesses."""
    return 4 * max_sequences + _SPARE_SLOTS


def arena_choice(spec: ModelSpec, arena: ArenaGeometry, table: GeometryTable) -> ChosenGeometry | None:
    """The geometry that decides between a contiguous and a paged arena; None if the spec or its limits decide."""
    cache = spec.cache
    sized = cache.num_blocks is not None or cache.memory_budget is not None
    if cache.mode != "auto" or cache.max_sequences > 1 or sized:
        return None
    return table.choose(Site.of_arena("arena", arena.cache_of(0))).sizes(ArenaSizes)


def chunk_choice(spec: ModelSpec, table: GeometryTable) -> ChosenGeometry:
    """The padding of prefill steps and, if the spec leaves it open, the most prompt tokens of a step."""
    choice = table.choose(Site.of_chunk(spec.model.num_layers, spec.model.hidden_size))
    return choice.sizes(ChunkSizes) if spec.prefill_chunk is None else choice.sizes("chunk_padding")


def chunk_tokens(spec: ModelSpec, chosen: ChosenGeometry) -> int:
    """The most prompt tokens of a step: the spec's, or else the chosen one, so that no activation has 2^31 elements."""
    if spec.prefill_chunk is not None:
        return spec.prefill_chunk
    return max(1, min(chosen.sizes["chunk_tokens"], INT32_MAX // spec.widest_activation))


def batch_limits(spec: ModelSpec, phase: PhaseName, max_tokens: int, max_rows: int) -> dict[str, int]:
    """The largest batch of a phase, by symbolic dim. In decode each sequence has one token and one row."""
    seqs = spec.cache.max_sequences
    tokens = seqs if phase == "decode" else max_tokens
    rows = seqs if phase == "decode" else max_rows
    return {"tokens": tokens, "seqs": seqs, "seqs+1": seqs + 1, "rows": rows}


def size_bytes(shape: Shape, dtype: DType, limits: Mapping[str, int]) -> int:
    """Bytes of a buffer at the largest batch."""
    return math.prod(limits[d] if isinstance(d, str) else d for d in shape) * dtype.size_bytes


def place_activations(
    launches: Sequence[PendingLaunch],
    shapes: Mapping[str, tuple[Shape, DType]],
    limits: Mapping[str, int],
    kept: Sequence[str],
) -> tuple[list[Buffer], int]:
    """Places buffers so that buffers that are alive at the same time never overlap.

    A buffer lives from the first launch that writes it to the last that reads it (`kept` buffers live to the end). Each
    gets the lowest offset that is free throughout its life, in order of birth, aligned to 256 bytes.

    Returns:
        The buffers, and the size in bytes of the memory that holds them all, a multiple of 256.
    """
    births: dict[str, int] = {}
    deaths: dict[str, int] = {}
    for index, launch in enumerate(launches):
        for name in launch.outputs:
            if name in shapes:
                births.setdefault(name, index)
                deaths[name] = index
        for name in launch.inputs:
            if name in births:
                deaths[name] = index
    for name in kept:
        deaths[name] = len(launches)
    buffers: list[Buffer] = []
    alive: list[tuple[int, Buffer]] = []
    total = 0
    for name, birth in births.items():
        alive = [(death, b) for death, b in alive if death >= birth]
        shape, dtype = shapes[name]
        size = size_bytes(shape, dtype, limits)
        offset = 0
        for _, other in sorted(alive, key=lambda pair: pair[1].offset_bytes):
            if offset + size <= other.offset_bytes:
                break
            offset = max(offset, _align(other.offset_bytes + other.size_bytes))
        buffer = Buffer(name=name, shape=shape, dtype=dtype, offset_bytes=offset, size_bytes=size)
        buffers.append(buffer)
        alive.append((deaths[name], buffer))
        total = max(total, _align(offset + size))
    return buffers, total


def _align(value: int) -> int:
    return -(-value // ALIGNMENT) * ALIGNMENT

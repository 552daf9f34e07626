"""The static memory plan: the sizes of arena and batches, and the places of activations."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mlxr.compiler.artifact.kernel_entry import ChosenGeometry
from mlxr.compiler.artifact.program import Buffer, PhaseName
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.errors import BudgetError
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import (
    CONV_STATES,
    KEYS,
    MOST_TAKEN_BACK,
    MOST_TILE_KEYS,
    STATES,
    VALUES,
    LayerGroup,
    Store,
    StoreRow,
    groups_of,
    hidden_rows,
    keys_and_values,
    latents,
    stored_type,
)
from mlxr.compiler.ir.tensor import Shape
from mlxr.compiler.schedule.geometry import ArenaSizes, ChunkSizes
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.schedule.pending_launch import PendingLaunch
from mlxr.compiler.spec.fields import INT32_MAX
from mlxr.compiler.spec.model import Attention, ModelSpec, Recurrent

ALIGNMENT = 256
_SPARE_SLOTS = 4
_LEAST_SNAPSHOT_TOKENS, _MOST_SNAPSHOT_TOKENS = 512, 2048
"""Tokens of a sequence from one snapshot of its state to the next; see `_snapshot_tokens`."""
_TEXTS_TOKENS = 1024
"""Tokens of whole texts that a step reads at least: on two cores, MiniLM is 3 % faster than with 512."""


def arena_geometry(spec: ModelSpec, table: GeometryTable, caches: Sequence[DType] = ()) -> ArenaGeometry:
    """Sizes of the arena.

    Args:
        spec: the spec.
        table: chooses between a paged and a contiguous arena, where the spec leaves it open.
        caches: the cache types of all targets. All targets get the same number of blocks, and none exceeds the budget.

    Raises:
        BudgetError: the arena cannot hold even one sequence, of full context or of the least.
    """
    cache, context = spec.cache, spec.model.context
    per_sequence, least = -(-context // cache.block_size), -(-spec.least_context // cache.block_size)
    stores, chunk = stores_of(spec), chunk_tokens(spec, chunk_choice(spec, table))
    state_bytes = sum(_state_bytes(store) for store in stores if store.scope == "sequence")
    num_slots = _num_slots(cache.max_sequences) if state_bytes else 0
    most = per_sequence * cache.max_sequences
    if spec.output == "hidden":  # prompts leave once they are read: room for the longest one and for two steps
        most = min(most, per_sequence + cache.max_sequences - 1 + -(-2 * chunk // cache.block_size))
    blocks = cache.num_blocks or min(most, spec.usual_blocks)
    for keeps_all in (cache.keep_windows, True):
        groups = _groups(spec, stores, blocks, step_tokens(spec, chunk), keeps_all=keeps_all)
        if cache.memory_budget is not None:
            types = (DType(cache.dtype), *caches)
            sizes = [max(_block_bytes(spec, stores, layers, dtype) for dtype in types) for layers, _, _ in groups]
            fixed = num_slots * state_bytes
            fixed += sum(size * count for size, (_, window, count) in zip(sizes, groups, strict=True) if window)
            each = sum(size for size, (_, window, _) in zip(sizes, groups, strict=True) if not window)
            spare = cache.memory_budget - fixed
            blocks = 0 if spare < 0 else min(most, spare // each) if each else most
        if all(count < blocks for _, window, count in groups if window):
            break
    if blocks < least:
        limit = "cache.num_blocks" if cache.num_blocks else "cache.memory_budget"
        raise BudgetError(
            f"{limit} gives {blocks} blocks of {cache.block_size} tokens, but one sequence of context "
            f"{spec.least_context} needs {least}; the largest context that fits is {blocks * cache.block_size}, with 1 "
            "sequence"
        )
    if blocks < per_sequence:
        per_sequence, context = blocks, blocks * cache.block_size
    contiguous = cache.mode == "contiguous"
    arena = ArenaGeometry(
        layout=cache.layout,
        mode="contiguous" if contiguous else "paged",
        block_size=cache.block_size,
        max_sequences=cache.max_sequences,
        context=context,
        stores=stores,
        groups=tuple(
            LayerGroup(layers, count if window else per_sequence if contiguous else blocks, per_sequence, window)
            for layers, window, count in groups
        ),
        num_slots=num_slots,
        snapshot_tokens=_snapshot_tokens(num_slots - 2 * cache.max_sequences, context, chunk),
    )
    chosen = arena_choice(spec, arena, table)
    if chosen and context <= chosen.sizes["contiguous_context"]:
        whole = groups_of(stores, [None] * len(spec.model.all_layers))
        groups_of_all = tuple(replace(arena.groups[0], layers=layers) for layers, _ in whole)
        arena = replace(arena, mode="contiguous", groups=groups_of_all)
    return arena


def _groups(
    spec: ModelSpec, stores: Sequence[Store], blocks: int, most_tokens: int, *, keeps_all: bool
) -> list[tuple[tuple[int, ...], int | None, int]]:
    """The groups of layers: their layers, their window and the blocks that they need.

    A window counts where its blocks are fewer than all. Contiguous arenas, ranks and heads that guess keep all tokens.

    Args:
        spec: the spec.
        stores: every store.
        blocks: that hold all tokens.
        most_tokens: of a step.
        keeps_all: whether windows do not count.
    """
    cache, size = spec.cache, spec.cache.block_size
    keeps_all = keeps_all or cache.mode == "contiguous" or spec.parallel is not None or spec.output == "hidden"

    def needed(window: int) -> int:
        # The window of each sequence, which may share none of it, and as much again for prefixes. A window also has
        # a block at either end that is used in part, and one that is copied.
        kept = -(-(window + MOST_TILE_KEYS + MOST_TAKEN_BACK) // size) + 3
        return 2 * cache.max_sequences * kept + -(-most_tokens // size)

    attentions = [layer.attention for layer in spec.model.all_layers]
    windows = [None if attention is None else attention.sliding_window for attention in attentions]
    if spec.model.has_head:
        windows[-1] = None  # the head may read a text long after the model has computed it
    used = [None if w is None or keeps_all or needed(w) >= blocks else w for w in windows]
    return [(layers, w, blocks if w is None else needed(w)) for layers, w in groups_of(stores, used)]


def _block_bytes(spec: ModelSpec, stores: Sequence[Store], layers: Sequence[int], dtype: DType) -> int:
    """Bytes of a block of these layers, with rows of tokens in a type."""
    rows = (store.with_dtype(dtype).row(layer) for store in stores if store.scope == "token" for layer in layers)
    return spec.cache.block_size * sum(row.size_bytes for row in rows if row is not None)


def stores_of(spec: ModelSpec) -> tuple[Store, ...]:
    """Everything that the model keeps between steps."""
    model, dtype = spec.model, DType(spec.cache.dtype)

    def of_tokens(name: str, index: int, attention: Attention | None, size: int) -> StoreRow | int | None:
        if attention is None or attention.latent is not None or not attention.causal:
            return None
        owner = model.kv_owner(index)
        return StoreRow((attention.num_kv_heads, size), stored_type(name, dtype)) if owner == index else owner

    layers = model.all_layers
    attentions = [layer.attention for layer in layers]
    keys = [of_tokens(KEYS, index, a, a.head_dim if a else 0) for index, a in enumerate(attentions)]
    values = [of_tokens(VALUES, index, a, a.result_dim if a else 0) for index, a in enumerate(attentions)]
    rows = [StoreRow((1, a.latent.row_dim), dtype) if a and a.latent else None for a in attentions]
    stores = [*keys_and_values(keys, values), latents(rows), *_states_of([layer.recurrent for layer in layers])]
    if model.has_head:
        stores.append(hidden_rows(len(layers), model.row_width, dtype))
    return tuple(store for store in stores if any(row is not None for row in store.rows))


def _states_of(blocks: Sequence[Recurrent | None]) -> tuple[Store, Store]:
    """What recurrent blocks keep of a sequence: the last inputs of their convolutions, and their states."""

    def store(name: str, rows: Sequence[tuple[int, ...] | None], whole: int) -> Store:
        units = next((block.units for block in blocks if block is not None), None)
        kept = tuple(None if row is None else StoreRow(row, DType.F32) for row in rows)
        return Store(name, "sequence", kept, "units", units, whole)

    whole = max((block.conv_whole for block in blocks if block is not None), default=0)
    return (
        store(CONV_STATES, [None if block is None else block.conv_row for block in blocks], whole),
        store(STATES, [None if block is None else block.state_row for block in blocks], 0),
    )


def _state_bytes(store: Store) -> int:
    """Bytes of a slot of a store of scope `sequence`."""
    return sum(row.size_bytes for row in store.rows if isinstance(row, StoreRow))


def _num_slots(max_sequences: int) -> int:
    """Slots of states: each sequence needs two; as many more, and a few, are for snapshots and for guesses."""
    return 4 * max_sequences + _SPARE_SLOTS


def _snapshot_tokens(num_spare: int, context: int, chunk: int) -> int:
    """How many tokens are between two snapshots of a sequence; 0: the model has no states.

    So few that the slots which sequences do not need hold the snapshots of a whole context, within bounds: reading 512
    tokens again takes half a second at 1,000 tokens a second, and reading 2048 two. They are whole chunks of prompts,
    since a chunk ends where a snapshot is taken.
    """
    if num_spare <= 0:
        return 0
    wanted = min(max(-(-context // num_spare), _LEAST_SNAPSHOT_TOKENS), _MOST_SNAPSHOT_TOKENS)
    return -(-wanted // chunk) * chunk


def arena_choice(spec: ModelSpec, arena: ArenaGeometry, table: GeometryTable) -> ChosenGeometry | None:
    """The geometry that decides between a contiguous and a paged arena.

    None if the spec or its limits decide, or if no layer keeps keys.
    """
    cache = spec.cache
    sized = cache.num_blocks is not None or cache.memory_budget is not None
    if cache.mode != "auto" or cache.max_sequences > 1 or sized or not arena.caches:
        return None
    return table.choose(Site.of_arena("arena", arena.caches[0])).sizes(ArenaSizes)


def chunk_choice(spec: ModelSpec, table: GeometryTable) -> ChosenGeometry:
    """The padding of prefill steps and, if the spec leaves it open, the most prompt tokens of a step."""
    choice = table.choose(Site.of_chunk(spec.model.num_layers, spec.model.hidden_size))
    passes = ("chunk_last_rows",)  # which is of the graph, and not of a step
    return choice.sizes(ChunkSizes, without=passes) if spec.prefill_chunk is None else choice.sizes("chunk_padding")


def chunk_tokens(spec: ModelSpec, chosen: ChosenGeometry) -> int:
    """The most prompt tokens of a step: the spec's, or else the chosen one, so that no activation has 2^31 elements."""
    if spec.prefill_chunk is not None:
        return spec.prefill_chunk
    wanted = chosen.sizes["chunk_tokens"]
    if spec.model.is_encoder:
        wanted = max(wanted, spec.model.context, _TEXTS_TOKENS)
    return max(1, min(wanted, INT32_MAX // spec.widest_activation))


def step_tokens(spec: ModelSpec, chunk: int) -> int:
    """The most tokens of a step: room for all sequences in decode, and never more than all of their contexts."""
    sequences = spec.cache.max_sequences
    return max(sequences, min(chunk, spec.model.context * sequences))


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

"""Geometry of the arena, which holds all stores: what the plan fixes and the runtime allocates.

Dimensions are counts; `block_size` is in tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import (
    ATTENDED,
    MOST_UNDONE,
    Allocation,
    LayerGroup,
    Store,
    cache_row_bytes,
    of_group,
)

Layout = Literal["block", "layer"]
Mode = Literal["paged", "contiguous"]


@dataclass(frozen=True)
class CacheGeometry:
    """What kernels of attention know of the arena: the keys and the values of one group of layers.

    Of latent attention the rows of latents, which are keys and values of one KV head.

    Attributes:
        num_blocks, num_layers, block_size, num_kv_heads, head_dim: dimensions; the layers are those of the group.
        dtype: the type of cached numbers; of keys, where values have another.
        layout, mode, max_sequences, context: see `ArenaGeometry`.
        v_dim: elements of a value where their rows differ from those of keys; else None.
        v_dtype: the type of values where it is another one, q4; else None.
    """

    layout: Layout
    mode: Mode
    num_blocks: int
    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: DType
    max_sequences: int
    context: int
    v_dim: int | None = None
    v_dtype: DType | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes that the key of one token takes in one KV head."""
        return cache_row_bytes(self.dtype, self.head_dim)

    @property
    def row_elements(self) -> int:
        """Size of the last dimension; in q8 it is in bytes and includes the f32 scale."""
        return self.row_bytes // self.dtype.size_bytes

    @property
    def value_dim(self) -> int:
        """Elements of a value."""
        return self.v_dim or self.head_dim

    @property
    def value_dtype(self) -> DType:
        """The type of values."""
        return self.v_dtype or self.dtype

    @property
    def mixed(self) -> bool:
        """Whether each 32 elements of keys and of values are mixed before they are rounded, as in q4."""
        return self.value_dtype is DType.Q4

    @property
    def value_bytes(self) -> int:
        """Bytes that the value of one token takes in one KV head."""
        return cache_row_bytes(self.value_dtype, self.value_dim)

    @property
    def value_elements(self) -> int:
        """As `row_elements`, of a value."""
        return self.value_bytes // self.value_dtype.size_bytes

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the keys."""
        return self._shape(self.row_elements)

    @property
    def value_shape(self) -> tuple[int, ...]:
        """Shape of the values."""
        return self._shape(self.value_elements)

    def _shape(self, row: int) -> tuple[int, ...]:
        outer = (self.num_blocks, self.num_layers)
        return (*(outer if self.layout == "block" else outer[::-1]), self.block_size, self.num_kv_heads, row)


@dataclass(frozen=True)
class ArenaGeometry:
    """The stores of a model, the groups of its layers, and the limits of the sequences in them.

    Attributes:
        layout: whether an allocation of scope `token` is [blocks, layers, ...] or [layers, blocks, ...].
        mode: whether sequences have block tables, or the only one has all blocks in order.
        block_size: tokens of a block.
        max_sequences: most sequences at once.
        context: most tokens of a sequence.
        stores: every store, by layer of the model (or of a rank's part).
        groups: layers with the same needs of scope `token`.
        num_slots: slots of scope `sequence`; 0 without such a store.
        snapshot_tokens: tokens from one snapshot of a sequence's state to the next; 0: only where prompts end.
    """

    layout: Layout
    mode: Mode
    block_size: int
    max_sequences: int
    context: int
    stores: tuple[Store, ...]
    groups: tuple[LayerGroup, ...]
    num_slots: int = 0
    snapshot_tokens: int = 0

    @cached_property
    def allocations(self) -> tuple[Allocation, ...]:
        """Every array, in the order in which plans and C programs have them."""
        return tuple(self._allocations())

    def _allocations(self) -> Iterator[Allocation]:
        for number, group in enumerate(self.groups):
            for store in self.stores:
                with_rows = self._with_rows(store, group) if store.scope == "token" else ()
                if with_rows:
                    blocks, layers, row = group.num_blocks, len(with_rows), store.row(with_rows[0])
                    assert row is not None, "they have rows"
                    outer = (blocks, layers) if self.layout == "block" else (layers, blocks)
                    shape = (*outer, self.block_size, *row.stored_shape)
                    yield Allocation(of_group(store.name, number), store, number, blocks, layers, row, shape)
        for store in self.stores:
            if store.scope == "sequence" and (owners := store.owners):
                row = store.row(owners[0])
                assert row is not None, "owners have rows"
                shape = (self.num_slots, len(owners), *row.stored_shape)
                yield Allocation(store.name, store, None, self.num_slots, len(owners), row, shape)

    @staticmethod
    def _with_rows(store: Store, group: LayerGroup) -> tuple[int, ...]:
        """The layers of a group that have rows of a store."""
        return tuple(layer for layer in group.layers if store.row(layer) is not None)

    @cached_property
    def _places(self) -> dict[tuple[str, int], tuple[str, int]]:
        """By a store's name and a layer that has a row: the name of the allocation, and the layer's place in it."""
        places = {}
        for store in self.stores:
            layers = {store.name: store.owners}
            if store.scope == "token":
                groups = enumerate(self.groups)
                layers = {of_group(store.name, number): self._with_rows(store, group) for number, group in groups}
            for name, own in layers.items():
                places.update({(store.name, layer): (name, place) for place, layer in enumerate(own)})
        return places

    @cached_property
    def _group_numbers(self) -> dict[int, int]:
        """The number of the group of each layer that has rows of its own."""
        return {layer: number for number, group in enumerate(self.groups) for layer in group.layers}

    def of_group(self, number: int | None) -> tuple[Allocation, ...]:
        """The allocations of a group; None: those of states."""
        return tuple(allocation for allocation in self.allocations if allocation.group == number)

    def store(self, name: str) -> Store:
        """The store of that name."""
        return next(store for store in self.stores if store.name == name)

    def group_of(self, layer: int) -> int | None:
        """The number of the group whose blocks a layer reads and writes; None: it keeps nothing of tokens."""
        owners = (store.owner(layer) for store in self.stores if store.scope == "token")
        return next((self._group_numbers[owner] for owner in owners if owner is not None), None)

    def place(self, store: Store, layer: int) -> tuple[str, int]:
        """Where a layer's rows of a store are: the name of the allocation, and the layer's place in it."""
        owner = store.owner(layer)
        assert owner is not None, f"layer {layer} keeps nothing in {store.name}"
        return self._places[store.name, owner]

    def with_cache(self, dtype: DType) -> "ArenaGeometry":
        """The same with rows of tokens in another type."""
        return replace(self, stores=tuple(s.with_dtype(dtype) if s.scope == "token" else s for s in self.stores))

    def with_blocks(self, num_blocks: int, context: int | None = None) -> "ArenaGeometry":
        """The same with another number of blocks where all tokens are kept, and perhaps another context."""
        groups = tuple(
            replace(group, num_blocks=num_blocks) if group.window is None else group for group in self.groups
        )
        return replace(self, groups=groups, context=self.context if context is None else context)

    @property
    def summary(self) -> str:
        """What it holds, for people: `K and V, each 64 blocks x 22 layers x 16 tokens x 4 x 64, bf16`."""
        alike: dict[str, list[str]] = {}
        for part in self.allocations:
            units, layers = (
                f"{part.num_units} {'slots' if part.group is None else 'blocks'}",
                f"{part.num_layers} layers",
            )
            outer = [units, layers] if part.group is None or self.layout == "block" else [layers, units]
            tokens = [] if part.group is None else [f"{self.block_size} tokens"]
            row = [str(size) for size in part.shape[len(outer) + len(tokens) :]]
            text = f"{' x '.join((*outer, *tokens, *row))}, {part.dtype}"
            window = None if part.group is None else self.groups[part.group].window
            text += "" if window is None else f", for a window of {window} tokens"
            alike.setdefault(text, []).append(part.store.title)
        return "; ".join(
            f"{' and '.join(titles)}, {'each ' if len(titles) > 1 else ''}{text}" for text, titles in alike.items()
        )

    @property
    def state_columns(self) -> int:
        """Most columns of a batch's table of states: the slot that a step reads, and all that it may write."""
        return 2 + max(self.block_size, MOST_UNDONE)

    @property
    def slots_bytes(self) -> int:
        """Bytes of the stores of scope `sequence`."""
        return sum(allocation.size_bytes for allocation in self.allocations if allocation.group is None)

    @property
    def size_bytes(self) -> int:
        """Bytes of all stores."""
        return sum(allocation.size_bytes for allocation in self.allocations)

    def cache_of(self, layer: int) -> CacheGeometry:
        """The keys and values of a layer, as kernels of attention know them."""
        rows = [row for store in self.stores if store.name in ATTENDED and (row := store.row(layer)) is not None]
        number = self.group_of(layer)
        assert rows and number is not None, f"layer {layer} keeps no keys"
        row, value = rows[0], rows[-1]
        assert row.shape[0] == value.shape[0], f"keys and values of layer {layer} have other heads"
        group = self.groups[number]
        return CacheGeometry(
            layout=self.layout,
            mode=self.mode,
            num_blocks=group.num_blocks,
            num_layers=len(group.layers),
            block_size=self.block_size,
            num_kv_heads=row.shape[0],
            head_dim=row.shape[1],
            dtype=row.dtype,
            max_sequences=self.max_sequences,
            context=self.context,
            v_dim=value.shape[1] if value != row else None,
            v_dtype=value.dtype if value.dtype is not row.dtype else None,
        )

    @property
    def caches(self) -> tuple[CacheGeometry, ...]:
        """The keys and values of each group that has some."""
        groups = {part.group: None for part in self.allocations if part.store.name in ATTENDED}
        return tuple(self.cache_of(self.groups[number].layers[0]) for number in groups if number is not None)

    @property
    def cache_type(self) -> DType:
        """The type of cached numbers: of tokens, else of states, else f32; q4 where that of values is."""
        types = [allocation.dtype for allocation in self.allocations if allocation.group is not None]
        types = types or [allocation.dtype for allocation in self.allocations]
        return DType.Q4 if DType.Q4 in types else next(iter(types), DType.F32)

    @property
    def num_layers(self) -> int:
        """Layers of the model, or of a rank's part of it; 0 if nothing is kept of any."""
        return len(self.stores[0].rows) if self.stores else 0

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of the groups that keep all tokens: of all their stores and layers."""
        kept = [number for number, group in enumerate(self.groups) if group.window is None]
        return sum(allocation.unit_bytes for allocation in self.allocations if allocation.group in kept)

    @property
    def whole_bytes(self) -> int:
        """Bytes that all stores would have if no group gave back what left its window."""
        return sum(
            allocation.size_bytes
            if allocation.group is None
            else allocation.unit_bytes * max(self.num_blocks, allocation.num_units)
            for allocation in self.allocations
        )

    @property
    def fixed_bytes(self) -> int:
        """Bytes that do not depend on how many tokens are kept: of windows, and of states."""
        kept = [number for number, group in enumerate(self.groups) if group.window is None]
        return sum(allocation.size_bytes for allocation in self.allocations if allocation.group not in kept)

    @property
    def num_blocks(self) -> int:
        """Blocks of the first group, which keeps all tokens."""
        return self.groups[0].num_blocks

    @property
    def max_blocks_per_sequence(self) -> int:
        """Columns of block tables."""
        return self.groups[0].max_blocks_per_sequence

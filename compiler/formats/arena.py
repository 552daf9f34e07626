"""Geometry of the arena, which holds all stores: what the plan fixes and the runtime allocates.

Dimensions are counts; `block_size` is in tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import Allocation, Group, Store, StoreRow, of_group


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
    """

    layout: Literal["block", "layer"]
    mode: Literal["paged", "contiguous"]
    block_size: int
    max_sequences: int
    context: int
    stores: tuple[Store, ...]
    groups: tuple[Group, ...]
    num_slots: int = 0

    @cached_property
    def allocations(self) -> tuple[Allocation, ...]:
        """Every array, in the order in which plans and C programs have them."""
        return tuple(self._allocations())

    def _allocations(self) -> Iterator[Allocation]:
        for number, group in enumerate(self.groups):
            for store in self.stores:
                row = store.row(group.layers[0]) if store.scope == "token" and group.layers else None
                if row is not None:
                    blocks, layers = group.num_blocks, len(group.layers)
                    outer = (blocks, layers) if self.layout == "block" else (layers, blocks)
                    shape = (*outer, self.block_size, *row.stored_shape)
                    yield Allocation(of_group(store.name, number), store, number, blocks, layers, shape, row.dtype)
        for store in self.stores:
            if store.scope == "sequence":
                owners = store.owners
                row = store.row(owners[0])
                assert row is not None, "owners have rows"
                shape = (self.num_slots, len(owners), *row.stored_shape)
                yield Allocation(store.name, store, None, self.num_slots, len(owners), shape, row.dtype)

    def store(self, name: str) -> Store:
        """The store of that name."""
        return next(store for store in self.stores if store.name == name)

    def group_of(self, layer: int) -> int | None:
        """The number of the group whose blocks a layer reads and writes; None: it keeps nothing of tokens."""
        owners = {store.owner(layer) for store in self.stores if store.scope == "token"} - {None}
        return next((number for number, group in enumerate(self.groups) if owners & set(group.layers)), None)

    def place(self, store: Store, layer: int) -> tuple[str, int]:
        """Where a layer's rows of a store are: the name of the allocation, and the layer's place in it."""
        owner, group = store.owner(layer), self.group_of(layer)
        assert owner is not None, f"layer {layer} keeps nothing in {store.name}"
        if store.scope == "sequence":
            return store.name, store.owners.index(owner)
        assert group is not None, f"layer {layer} is in no group"
        return of_group(store.name, group), self.groups[group].layers.index(owner)

    def with_cache(self, dtype: DType) -> "ArenaGeometry":
        """The same with rows of tokens in another type."""
        return replace(self, stores=tuple(s.with_dtype(dtype) if s.scope == "token" else s for s in self.stores))

    def with_blocks(self, num_blocks: int, context: int | None = None) -> "ArenaGeometry":
        """The same with another number of blocks, and perhaps another context."""
        groups = tuple(replace(group, num_blocks=num_blocks) for group in self.groups)
        return replace(self, groups=groups, context=self.context if context is None else context)

    @property
    def size_bytes(self) -> int:
        """Bytes of all stores."""
        return sum(allocation.size_bytes for allocation in self.allocations)

    @property
    def _only_group(self) -> Group:
        (group,) = self.groups
        return group

    @property
    def num_blocks(self) -> int:
        """Blocks of the only group."""
        return self._only_group.num_blocks

    @property
    def max_blocks_per_sequence(self) -> int:
        """Columns of the only group's block table."""
        return self._only_group.max_blocks_per_sequence

    @property
    def num_layers(self) -> int:
        """Layers of the model, or of a rank's part of it."""
        return len(self.stores[0].rows)

    @property
    def _row(self) -> StoreRow:
        row = self.stores[0].row(self._only_group.layers[0])
        assert row is not None, "the first store is that of the keys"
        return row

    @property
    def num_kv_heads(self) -> int:
        """KV heads of each layer."""
        return self._row.shape[0]

    @property
    def head_dim(self) -> int:
        """Elements of a KV head."""
        return self._row.shape[1]

    @property
    def dtype(self) -> DType:
        """The type of cached keys and values."""
        return self._row.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes that one token takes in one KV head."""
        return self._row.size_bytes // self.num_kv_heads

    @property
    def row_elements(self) -> int:
        """Size of the last dimension of K and of V."""
        return self._row.stored_shape[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of K, and of V."""
        return self.allocations[0].shape

"""Stores: what a model keeps between steps. Keys and values are two of them; a state of each sequence is another.

A store of scope `token` has a row for each token, in blocks that the pager hands out; one of scope `sequence` has a row
for each sequence, in a slot. Layers with the same needs of scope `token` form a `LayerGroup`, which has one block
table: block i of a group holds the same tokens in all of its stores and layers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mlxr.compiler.formats.dtypes import DType

Scope = Literal["token", "sequence"]
Countable = Literal["heads", "kv_heads", "columns", "experts", "units", "vocabulary"]
"""What the ranks of a stage divide."""
KEYS, VALUES, LATENTS = "k_arena", "v_arena", "latent_arena"
HIDDEN = "hidden_arena"
"""Rows after the final norm, for the head that guesses; layers that lack them share blocks with those that do not."""
MOST_TAKEN_BACK = 64
"""The most tokens before its newest step that a sequence may drop; windows keep their blocks for as long."""
MOST_TILE_KEYS = 128
"""The largest tile of keys of a prefill kernel; it begins to read at a multiple of its tile."""
CONV_STATES, STATES = "conv_states", "states"
"""The stores of recurrent blocks: the last inputs of their convolutions, and what else they keep."""
_TITLES = {KEYS: "K", VALUES: "V", LATENTS: "latents", CONV_STATES: "convolutions", HIDDEN: "rows for guesses"}
KEYS_AND_VALUES = (KEYS, VALUES)
"""The stores of attention, in the order in which plans list them."""
ATTENDED = (*KEYS_AND_VALUES, LATENTS)
"""All stores that attention reads; of latent attention that of its rows alone."""
MOST_UNDONE = 15
"""How many of a sequence's last tokens a step may have to take back: guesses that turn out wrong."""


Q4_GROUP = 32
"""Elements of a row in q4 that share a scale, and that are mixed before they are rounded."""


def stored_type(name: str, dtype: DType) -> DType:
    """The type of a store's rows in a cache of a type: keys of q4 have 8 bits; rows for guesses are floats."""
    if name == HIDDEN:
        return DType.BF16 if dtype in (DType.Q8, DType.Q4) else dtype
    return DType.Q4_KEYS if dtype is DType.Q4 and name != VALUES else dtype


def cache_row_bytes(dtype: DType, head_dim: int) -> int:
    """Bytes that one token takes in one KV head: its elements and their scales.

    In q8 an f32 scale is behind the elements; in q4, whose values have 6 bits, a bf16 scale for each group, all of it
    rounded up to 4 bytes.
    """
    if dtype in (DType.Q4, DType.Q4_KEYS):
        assert head_dim % Q4_GROUP == 0, f"{head_dim} elements of q4"
        elements = head_dim // 4 * 3 if dtype is DType.Q4 else head_dim
        return -(-(elements + head_dim // Q4_GROUP * 2) // 4) * 4
    return head_dim * dtype.size_bytes + (4 if dtype is DType.Q8 else 0)


@dataclass(frozen=True)
class StoreRow:
    """What one layer keeps of a token or of a sequence: `shape` counts numbers, not scales."""

    shape: tuple[int, ...]
    dtype: DType

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape in memory: in q8 and q4 the last dimension is in bytes, and includes scales."""
        *outer, last = self.shape
        return (*outer, cache_row_bytes(self.dtype, last) // self.dtype.size_bytes)

    @property
    def size_bytes(self) -> int:
        """Bytes in memory."""
        return math.prod(self.stored_shape) * self.dtype.size_bytes


@dataclass(frozen=True)
class Store:
    """One thing that a model keeps.

    Attributes:
        name: of the store, and of the port that op kinds have for it.
        scope: whether each token or each sequence has a row.
        rows: by layer: its row, the number of the earlier layer whose row it shares, or None if it keeps nothing here.
        along: what the first axis of its rows counts, of which each rank of a stage has some; None: each has them all.
        count: how many of them there are, where each has several elements of that axis; None: one.
        whole: the last elements of that axis, of which each rank has all.
    """

    name: str
    scope: Scope
    rows: tuple[StoreRow | int | None, ...]
    along: Countable | None = None
    count: int | None = None
    whole: int = 0

    def owner(self, layer: int) -> int | None:
        """The layer whose row this layer reads and writes; None: it keeps nothing here."""
        row = self.rows[layer]
        return row if isinstance(row, int) else None if row is None else layer

    @property
    def title(self) -> str:
        """Its name for people."""
        return _TITLES.get(self.name, self.name)

    @property
    def owners(self) -> tuple[int, ...]:
        """The layers that have rows of their own."""
        return tuple(layer for layer, row in enumerate(self.rows) if isinstance(row, StoreRow))

    def row(self, layer: int) -> StoreRow | None:
        """The row that this layer reads and writes."""
        owner = self.owner(layer)
        row = None if owner is None else self.rows[owner]
        assert not isinstance(row, int), f"{self.name}: layer {layer} shares a row with {owner}, which has none"
        return row

    def with_dtype(self, dtype: DType) -> "Store":
        """The same store with the rows that a cache of that type has."""
        dtype = stored_type(self.name, dtype)
        return replace(self, rows=tuple(replace(r, dtype=dtype) if isinstance(r, StoreRow) else r for r in self.rows))


@dataclass(frozen=True)
class LayerGroup:
    """Layers with the same needs: they keep the same rows in stores of scope `token`, of the same tokens.

    The first group keeps all tokens, and has no layers if none does so: prefixes go by its blocks.

    Attributes:
        layers: that have rows of their own, ascending; a kernel gets a layer's place here as its number.
        num_blocks: blocks of each of its allocations.
        max_blocks_per_sequence: columns of its block table: blocks of a sequence of the whole context.
        window: tokens that each of its layers sees, the newest included; None: all. Blocks that left it are freed.
    """

    layers: tuple[int, ...]
    num_blocks: int
    max_blocks_per_sequence: int
    window: int | None = None

    def first_read(self, position: int) -> int:
        """The first position that kernels may read for a query at `position`, whole tiles of keys included."""
        return 0 if self.window is None else max(0, position + 1 - self.window - (MOST_TILE_KEYS - 1))


@dataclass(frozen=True)
class Allocation:
    """One array of the runtime: the rows that a store has in a group, or in all layers with scope `sequence`.

    Attributes:
        name: the buffer's name in graphs and plans: the store's and, of groups after the first, the group's number.
        store: the store.
        group: the group's number; None with scope `sequence`.
        num_units: blocks or slots.
        num_layers: layers that have rows of their own here.
        row: what each of them keeps.
        shape: of the array.
    """

    name: str
    store: Store
    group: int | None
    num_units: int
    num_layers: int
    row: StoreRow
    shape: tuple[int, ...]

    @property
    def dtype(self) -> DType:
        """The type of the array."""
        return self.row.dtype

    @property
    def size_bytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.dtype.size_bytes

    @property
    def unit_bytes(self) -> int:
        """Bytes of one block or slot, all layers."""
        return self.size_bytes // self.num_units


def of_group(name: str, group: int) -> str:
    """The name of a group's buffer: `block_tables` of the first group, `block_tables.1` of the second."""
    return f"{name}.{group}" if group else name


def keys_and_values(
    rows: Sequence[StoreRow | int | None], values: Sequence[StoreRow | int | None] | None = None
) -> tuple[Store, Store]:
    """The stores of attention; without `values`, K and V have equal rows."""
    v_rows = rows if values is None else values
    return Store(KEYS, "token", tuple(rows), "kv_heads"), Store(VALUES, "token", tuple(v_rows), "kv_heads")


def latents(rows: Sequence[StoreRow | int | None]) -> Store:
    """The store of latent attention. Each rank of a stage has whole rows."""
    return Store(LATENTS, "token", tuple(rows))


def hidden_rows(num_layers: int, width: int, dtype: DType) -> Store:
    """The store of rows after the final norm, which only the last layer has: that of the head that guesses."""
    store = Store(HIDDEN, "token", (*[None] * (num_layers - 1), StoreRow((width,), dtype)))
    return store.with_dtype(dtype)


def groups_of(stores: Sequence[Store], windows: Sequence[int | None]) -> list[tuple[tuple[int, ...], int | None]]:
    """Layers with the same needs of scope `token`, each with their window; the first ones keep all tokens.

    Args:
        stores: every store.
        windows: by layer: tokens that it sees; None: all. A row that several layers read is kept for the widest.
    """
    tokens = [store for store in stores if store.scope == "token"]
    users: dict[int, list[int]] = {}
    for layer in range(len(windows)):
        owners = {owner for store in tokens if (owner := store.owner(layer)) is not None}
        assert len(owners) < 2, f"layer {layer} shares rows with several layers: {sorted(owners)}"
        for owner in owners:
            users.setdefault(owner, []).append(layer)
    groups: dict[tuple[object, int | None], list[int]] = {}
    for owner, layers in sorted(users.items()):
        seen = [windows[layer] for layer in layers]
        window = None if None in seen else max(w for w in seen if w is not None)
        needs = tuple(store.row(owner) for store in tokens if store.name != HIDDEN)
        groups.setdefault((needs, window), []).append(owner)
    found = sorted(((tuple(layers), window) for (_, window), layers in groups.items()), key=lambda g: g[1] is not None)
    return found if found and found[0][1] is None else [((), None), *found]

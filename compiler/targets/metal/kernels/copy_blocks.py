"""Copies of blocks, within the arena and into it."""

from dataclasses import dataclass

from mlxr.compiler.artifact.launch import ONE, Extent
from mlxr.compiler.formats.arena import ArenaGeometry, Layout
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import Allocation, of_group
from mlxr.compiler.ir.tensor import ARENA_TOKEN
from mlxr.compiler.schedule.kernel import Port, round_up
from mlxr.compiler.schedule.pending_launch import PendingLaunch
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH, MetalKernel

_WORDS = {16: "uint4", 8: "uint2", 4: "uint", 2: "ushort", 1: "uchar"}
"""Types of words by their bytes, largest first."""


@dataclass(frozen=True)
class CopiedRows:
    """One store's rows in the group.

    Attributes:
        name, title: of the store, for the kernel and for people.
        shape, dtype: of the array.
        row_elements: elements of a token's row.
        layer_bytes: bytes of one layer of a block.
        num_layers: layers of the group that have rows of the store.
    """

    name: str
    title: str
    shape: tuple[int, ...]
    dtype: DType
    row_elements: int
    layer_bytes: int
    num_layers: int

    @classmethod
    def of(cls, part: Allocation) -> "CopiedRows":
        """Those of an allocation."""
        elements = part.row.size_bytes // part.dtype.size_bytes
        layer_bytes = part.unit_bytes // part.num_layers
        sizes = (part.shape, part.dtype, elements, layer_bytes, part.num_layers)
        return cls(part.store.name, part.store.title, *sizes)


@dataclass(frozen=True)
class CopyBlocksKernel(MetalKernel):
    """Copies whole blocks of all layers of a group into the arena.

    They come from the arena, before a step writes into blocks that sequences share (copy-on-write), or from a buffer,
    where blocks are restored that were read from the arena before.

    Attributes:
        layout, block_size: see `ArenaGeometry`.
        num_blocks, num_layers: of the group.
        parts: what it copies, in the order in which the buffer has it.
    """

    layout: Layout
    block_size: int
    num_blocks: int
    num_layers: int
    parts: tuple[CopiedRows, ...]

    template = "copy_blocks.metal.jinja"

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Pairs of blocks, the blocks that are not in the arena, the stores, and the token."""
        stores = ((part.name, part.dtype) for part in self.parts)
        return (("copies", DType.I32), ("blocks", DType.U8), *stores, ("token", DType.U32))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The token."""
        return (("token_out", DType.U32),)

    @property
    def is_even(self) -> bool:
        """Whether all stores have rows of the same form, as keys and values have: one loop copies them."""
        return len({(part.shape, part.dtype) for part in self.parts}) == 1

    @property
    def threads(self) -> int:
        """A thread for each word of one layer of a block, of the store with the most, up to 256."""
        return min(256, round_up(max(map(self.chunks, self.parts)), SIMD_WIDTH))

    @property
    def word_bytes(self) -> int:
        """Bytes of a word, which a thread copies at a time: the most that divide one layer of a block of each store."""
        return next(size for size in _WORDS if all(part.layer_bytes % size == 0 for part in self.parts))

    @property
    def word(self) -> str:
        """The type of a word."""
        return _WORDS[self.word_bytes]

    def chunks(self, part: CopiedRows) -> int:
        """Words of one layer of a block of a store."""
        return part.layer_bytes // self.word_bytes

    def begin(self, part: CopiedRows) -> int:
        """Words before a store in a block of the buffer."""
        return sum(self.chunks(before) * before.num_layers for before in self.parts[: self.parts.index(part)])

    @property
    def buffer_chunks(self) -> int:
        """Words of a block of the buffer."""
        return sum(self.chunks(part) * part.num_layers for part in self.parts)


def copy_blocks_launches(arena: ArenaGeometry) -> tuple[PendingLaunch, ...]:
    """For each group with layers the launch that copies blocks before a step, and for states that which copies slots.

    No op of the graph stands for them.
    """
    numbers: list[int | None] = [number for number, group in enumerate(arena.groups) if group.layers]
    return tuple(_launch(arena, number) for number in [*numbers, *([None] if arena.of_group(None) else [])])


def _launch(arena: ArenaGeometry, number: int | None) -> PendingLaunch:
    allocations = arena.of_group(number)
    parts = tuple(CopiedRows.of(allocation) for allocation in allocations)
    layers, units = max(part.num_layers for part in parts), allocations[0].num_units
    layout: Layout = "block" if number is None else arena.layout
    size = 1 if number is None else arena.block_size
    label = "copy_states" if number is None else "copy_blocks"
    return PendingLaunch(
        label,
        CopyBlocksKernel(label, layout, size, units, layers, parts),
        ("copies", "blocks", *(allocation.name for allocation in allocations), ARENA_TOKEN),
        (of_group(f"{label}.token", number or 0),),
        (Extent(dim="copies"), Extent(times=layers), ONE),
    )

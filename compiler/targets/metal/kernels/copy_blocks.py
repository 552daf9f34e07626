"""Copies of blocks, within the arena and into it."""

from dataclasses import dataclass

from mlxr.compiler.artifact.launch import ONE, Extent
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import of_group
from mlxr.compiler.ir.tensor import ARENA_TOKEN
from mlxr.compiler.schedule.kernel import Port, round_up
from mlxr.compiler.schedule.pending_launch import PendingLaunch
from mlxr.compiler.targets.metal.kernel_parts.arena_kernel import ArenaKernel
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH

_WORDS = {16: "uint4", 8: "uint2", 4: "uint"}
"""Types of words by their bytes, largest first."""


@dataclass(frozen=True)
class CopyBlocksKernel(ArenaKernel):
    """Copies whole blocks of all layers into the arena.

    They come from the arena, before a step writes into blocks that sequences share (copy-on-write), or from a buffer,
    where blocks are restored that were read from the arena before.
    """

    template = "copy_blocks.metal.jinja"

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Pairs of blocks, the blocks that are not in the arena, and the arena."""
        return (("copies", DType.I32), ("blocks", DType.U8), *self.arena_ports)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The token."""
        return (("token_out", DType.U32),)

    @property
    def threads(self) -> int:
        """A thread for each word of one layer of a block, up to 256."""
        return min(256, round_up(self.chunks, SIMD_WIDTH))

    @property
    def block_bytes(self) -> int:
        """Bytes of one layer of a block."""
        return self.arena.block_size * self.arena.num_kv_heads * self.arena.row_bytes

    @property
    def word_bytes(self) -> int:
        """Bytes of a word, which a thread copies at a time: the most that divide one layer of a block."""
        return next(size for size in _WORDS if self.block_bytes % size == 0)

    @property
    def word(self) -> str:
        """The type of a word."""
        return _WORDS[self.word_bytes]

    @property
    def chunks(self) -> int:
        """Words of one layer of a block."""
        return self.block_bytes // self.word_bytes


def copy_blocks_launches(arena: ArenaGeometry) -> tuple[PendingLaunch, ...]:
    """For each group with layers the launch that copies blocks before a step; no op of the graph stands for it."""
    return tuple(_launch(arena, number) for number, group in enumerate(arena.groups) if group.layers)


def _launch(arena: ArenaGeometry, group: int) -> PendingLaunch:
    cache = arena.cache_of(arena.groups[group].layers[0])
    stores = tuple(allocation.name for allocation in arena.of_group(group))
    kernel = CopyBlocksKernel("copy_blocks", cache)
    return PendingLaunch(
        "copy_blocks",
        kernel,
        ("copies", "blocks", *stores, ARENA_TOKEN),
        (of_group("copy_blocks.token", group),),
        (Extent(dim="copies"), Extent(times=cache.num_layers), ONE),
    )

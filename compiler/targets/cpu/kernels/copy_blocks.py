"""Copies of whole blocks of a group's stores, before a step writes into blocks that sequences share."""

from collections.abc import Iterator
from dataclasses import dataclass

from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.schedule.pending_launch import PendingLaunch
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel, Param


@dataclass(frozen=True)
class CopiedPart:
    """The blocks of one allocation. In layout `block`, all layers of a block are one run of bytes.

    Attributes:
        store: its number in the program's list of stores.
        group: the number of its group.
        shape, dtype: of the allocation, whose number of blocks the text does not tell: most texts do not depend on it.
        copies: runs of bytes that are copied for a block.
        block_stride, layer_stride: bytes from one block to the next, and from one run of a block to its next.
        copied_bytes: bytes of a run.
    """

    store: int
    group: int
    shape: tuple[int | str, ...]
    dtype: DType
    copies: int
    block_stride: int
    layer_stride: int
    copied_bytes: int


@dataclass(frozen=True)
class CpuCopyBlocks(CpuKernel):
    """Copy-on-write of whole blocks.

    No step calls it: its signature is `void NAME(mlxr_model *, int group, const int32_t *pairs, int)`.

    Attributes:
        parts: what it copies.
    """

    parts: tuple[CopiedPart, ...]

    template = "copy_blocks.jinja"

    @property
    def params(self) -> tuple[Param, ...]:
        """None: no launch binds its parameters."""
        return ()


def copy_blocks_launch(arena: ArenaGeometry) -> PendingLaunch:
    """The launch that copies blocks of an arena."""
    return PendingLaunch("copy_blocks", CpuCopyBlocks("copy_blocks", tuple(_parts(arena))), (), ())


def _parts(arena: ArenaGeometry) -> Iterator[CopiedPart]:
    for number, allocation in enumerate(arena.allocations):
        if allocation.group is None:
            continue
        block = allocation.unit_bytes
        layer = block // allocation.num_layers
        if arena.layout == "block":
            sizes = (1, block, 0, block)
        else:
            sizes = (allocation.num_layers, layer, allocation.num_units * layer, layer)
        outer = "blocks", allocation.num_layers
        shape = (*(outer if arena.layout == "block" else outer[::-1]), *allocation.shape[2:])
        yield CopiedPart(number, allocation.group, shape, allocation.dtype, *sizes)

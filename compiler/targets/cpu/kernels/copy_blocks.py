"""Copies of whole blocks of the KV arena, before a step writes into blocks that sequences share."""

from dataclasses import dataclass

from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.schedule.pending_launch import PendingLaunch
from mlxr.compiler.targets.cpu.kernel_parts.arena_kernel import CpuArenaKernel
from mlxr.compiler.targets.cpu.kernel_parts.kernel import Param


@dataclass(frozen=True)
class CpuCopyBlocks(CpuArenaKernel):
    """Copy-on-write of whole blocks.

    No step calls it: its signature is `void NAME(mlxr_model *, const int32_t *pairs, int)`.
    """

    template = "copy_blocks.jinja"

    @property
    def params(self) -> tuple[Param, ...]:
        """None: no launch binds its parameters."""
        return ()


def copy_blocks_launch(arena: ArenaGeometry) -> PendingLaunch:
    """The launch that copies blocks of an arena."""
    return PendingLaunch("copy_blocks", CpuCopyBlocks(label="copy_blocks", arena=arena), (), ())

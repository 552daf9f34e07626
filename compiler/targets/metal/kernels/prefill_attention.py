"""Lowers attention of a prefill step: a kernel, or a call of MLX's attention where that is faster."""

from dataclasses import replace

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.formats.stores import MOST_TILE_KEYS
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.attention import RopeAttention
from mlxr.compiler.schedule.geometry import AttendTile, PrefillAttention
from mlxr.compiler.targets.metal.kernel_parts.arena_kernel import arena_buffers
from mlxr.compiler.targets.metal.kernel_parts.kernel import MMA_ROWS
from mlxr.compiler.targets.metal.kernels.attend_prefill import attend_prefill
from mlxr.compiler.targets.metal.kernels.attend_prefill_mma import AttendPrefillMmaKernel
from mlxr.compiler.targets.metal.kernels.attend_prefill_tiles_mma import AttendPrefillTilesMmaKernel
from mlxr.compiler.targets.metal.kernels.attend_prefill_wide_mma import AttendPrefillWideMmaKernel
from mlxr.compiler.targets.metal.kernels.library_attention import (
    call_attention,
    library_condition,
    prepare_attention_inputs,
)
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers


@lowers(RopeAttention)
def lower_prefill_attention(lowering: MetalLowering, op: Op, _: RopeAttention) -> None:
    """Adds the launch of a kernel. If MLX's attention takes some steps, also adds its call and its inputs' launch.

    A deterministic decode step also attends by this kernel, with the same tiles of keys, and a tile for each token.

    The kernel uses matrix instructions (MMA) if the geometry asks for them and types and heads suit them: 512 tokens of
    TinyLlama take 18.8 us per layer (H200, experiment 22 of benchmarks/NOTES-gpu.md).
    """
    choice = lowering.table.choose(Site.of_arena("attend_prefill", lowering.cache_of(op)))
    g = choice.geometry.prefill_attention
    kernel, rows = attend_prefill(lowering, op, g.tile), g.tile.rows
    if lowering.phase == "decode":
        kernel, rows = replace(kernel, tile=1), MMA_ROWS
    unused = AttendTile.names("parts")
    if AttendPrefillWideMmaKernel.can_replace(kernel):
        kernel = AttendPrefillWideMmaKernel.replacing_wide(kernel, rows, g.tile) if g.tile.mma else kernel
    elif not AttendPrefillMmaKernel.can_replace(kernel):
        unused += AttendTile.names("mma")
    elif g.tile.mma == 2 and not lowering.deterministic and rows in (64, 128):
        kernel = AttendPrefillTilesMmaKernel.replacing_tiles(kernel, rows, g.tile.parts)
        unused = AttendTile.names("keys", "rows_per_simdgroup")
    elif g.tile.mma:
        kernel = AttendPrefillMmaKernel.replacing(kernel, rows)
        unused += AttendTile.names("keys", "rows_per_simdgroup")
    assert kernel.keys <= MOST_TILE_KEYS, "it would read blocks that were given back"
    library = None
    if not lowering.deterministic:
        library = library_condition(kernel, g.library, lowering.limits["tokens"])
    if library is not None:
        prepare_attention_inputs(lowering, op, kernel, choice, library)
    grid = (Extent(times=kernel.num_kv_heads * kernel.head_groups), Extent(dim="tiles"))
    chosen = choice.sizes(PrefillAttention, without=unused)
    lowering.emit(op, kernel, grid, arena_buffers(lowering, op) | {"out": op.out}, yields=library, chosen=chosen)
    if library is not None:
        call_attention(lowering, op, kernel, library)

"""Lowers attention of a prefill step to launches: a kernel, and in its place MLX's attention where that is faster."""

from dataclasses import replace

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.errors import PlanError
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.attention import RopeAttention
from mlxr.compiler.schedule.geometry import AttendTile, PrefillAttention
from mlxr.compiler.targets.metal.kernels.arena_kernel import arena_buffers
from mlxr.compiler.targets.metal.kernels.attend_prefill import AttendPrefillKernel
from mlxr.compiler.targets.metal.kernels.attend_prefill_mma import AttendPrefillMmaKernel
from mlxr.compiler.targets.metal.kernels.attention_kernel import attention_fields
from mlxr.compiler.targets.metal.kernels.kernel import THREADGROUP_BYTES
from mlxr.compiler.targets.metal.kernels.library_attention import (
    call_attention,
    library_condition,
    prepare_attention_inputs,
)
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers


@lowers(RopeAttention)
def lower_prefill_attention(lowering: MetalLowering, op: Op, attrs: RopeAttention) -> None:
    """Adds the kernel's launch and, if MLX's attention takes some steps, what prepares its inputs and the call."""
    choice = lowering.table.choose(Site.of_arena("attend_prefill", lowering.arena))
    g = choice.geometry.prefill_attention
    kernel = _fitting_kernel(lowering, op, g.tile)
    unused: tuple[str, ...] = ()
    if not AttendPrefillMmaKernel.takes(kernel):
        unused = AttendTile.names("mma")
    elif g.tile.mma:
        kernel = AttendPrefillMmaKernel.made_of(kernel, g.tile.rows)
        unused = AttendTile.names("keys", "rows_per_simdgroup")
    library = library_condition(kernel, g.library, lowering.limits["tokens"])
    if library is not None:
        prepare_attention_inputs(lowering, op, kernel, choice, library)
    lowering.emit(
        op,
        kernel,
        (Extent(times=lowering.arena.num_kv_heads * kernel.head_groups), Extent(dim="tiles")),
        arena_buffers(op) | {"out": op.out},
        yields=library,
        chosen=choice.sizes(PrefillAttention, without=unused),
    )
    if library is not None:
        call_attention(lowering, op, kernel, library)


def _fitting_kernel(lowering: MetalLowering, op: Op, g: AttendTile) -> AttendPrefillKernel:
    """The kernel of the largest tiles that threadgroup memory holds: full key tiles first, then rows."""
    keys = g.keys
    while keys >= 4:
        rows = g.rows
        while rows >= 8:
            kernel = AttendPrefillKernel(
                "attend_prefill",
                **attention_fields(lowering, op),
                tile=1,
                heads=1,
                keys=keys,
                rows_per_simdgroup=g.rows_per_simdgroup,
            )
            heads = min(rows, kernel.gqa_ratio)
            kernel = replace(kernel, tile=rows // heads, heads=heads)
            if kernel.threadgroup_bytes <= THREADGROUP_BYTES and kernel.threads <= 1024:
                return kernel
            rows //= 2
        keys //= 2
    head_dim = lowering.arena.head_dim
    raise PlanError(f"no prefill attention tile of heads of {head_dim} fits {THREADGROUP_BYTES} bytes")

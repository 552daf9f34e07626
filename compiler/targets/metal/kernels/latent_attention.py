"""Lowers attention to rows of latents that are in the arena."""

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.latent import LatentAttention
from mlxr.compiler.schedule.geometry import AttendTile
from mlxr.compiler.targets.metal.kernel_parts.arena_kernel import arena_buffers
from mlxr.compiler.targets.metal.kernels.attend_latent import AttendLatentKernel, attend_kernel
from mlxr.compiler.targets.metal.kernels.attend_latent_mma import AttendLatentMmaKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers


@lowers(LatentAttention)
def lower_latent_attention(lowering: MetalLowering, op: Op, attrs: LatentAttention) -> None:
    """Adds the launch of the kernel: with MMA, if the geometry asks for it and types and sizes suit it."""
    plain = attend_kernel(lowering, op, attrs)
    choice = lowering.table.choose(Site.of_arena(plain.label, plain.arena))
    replaced = None if lowering.deterministic else AttendLatentMmaKernel.replacing(plain)
    asked = bool(choice.geometry.prefill_attention.tile.mma)
    kernel: AttendLatentKernel | AttendLatentMmaKernel = replaced if replaced and asked else plain
    buffers = arena_buffers(lowering, op) | {"out": op.out}
    chosen = choice.sizes(*AttendTile.names("mma")) if replaced else None
    lowering.emit(op, kernel, (Extent(times=kernel.head_groups), Extent(dim="tiles")), buffers, chosen=chosen)

"""Projections of many rows by quantised weights and by matrix instructions."""

from dataclasses import dataclass

from mlxr.compiler.targets.metal.kernels.gemm import GEMM_COLUMNS
from mlxr.compiler.targets.metal.kernels.projection_kernel import ProjectionKernel

GEMM_MMA_TILE = 64
"""Rows of x of a threadgroup."""


@dataclass(frozen=True)
class GemmMmaKernel(ProjectionKernel):
    """As `GemmKernel`, but by matrix instructions, for 64 rows of x. x is normalised already: `norm` is None."""

    template = "gemm_mma.metal.jinja"
    mma = True

    @property
    def outs_per_threadgroup(self) -> int:
        """Outputs of a threadgroup, which all of its simdgroups share."""
        return self.outs

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the tiles of x and of the weight, `unroll` of each."""
        return self.unroll * (self.tile + self.rows) * GEMM_COLUMNS * self.activation.size_bytes

"""The base of the kernels whose threadgroups hold a row, or an equal piece of one, in registers."""

from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH, MetalKernel
from mlxr.compiler.targets.metal.kernel_parts.row_sums import QUAD, simdgroups_for


class RowKernel(MetalKernel):
    """Base of these kernels: a threadgroup for each piece, and its lanes hold vectors of 4 elements."""

    @property
    def piece(self) -> int:
        """Columns of a piece."""
        raise NotImplementedError(f"{type(self).__name__} does not say its columns")

    @property
    def simdgroups(self) -> int:
        """Simdgroups that share a piece."""
        return simdgroups_for(self.piece)

    @property
    def threads(self) -> int:
        """Threads of all simdgroups."""
        return self.simdgroups * SIMD_WIDTH

    @property
    def quads(self) -> int:
        """Vectors of 4 elements that a lane holds."""
        return -(-self.piece // (QUAD * self.threads))

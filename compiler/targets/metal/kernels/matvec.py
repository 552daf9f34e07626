"""Projections of one row."""

from dataclasses import dataclass

from mlxr.compiler.targets.metal.kernels.projection_kernel import ProjectionKernel


@dataclass(frozen=True)
class MatvecKernel(ProjectionKernel):
    """A projection of one row: the lanes of a simdgroup share the columns of its weight rows."""

    template = "matvec.metal.jinja"

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the sums of simdgroups that share columns."""
        return self.simdgroups * self.sums * 4 if self.split > 1 else 0

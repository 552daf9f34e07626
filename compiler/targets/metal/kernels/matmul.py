"""Projections of several rows."""

from dataclasses import dataclass

from mlxr.compiler.targets.metal.kernels.projection_kernel import ProjectionKernel


@dataclass(frozen=True)
class MatmulKernel(ProjectionKernel):
    """A projection of several rows: a simdgroup reads each of its weights once for `tile` rows of x."""

    template = "matmul.metal.jinja"

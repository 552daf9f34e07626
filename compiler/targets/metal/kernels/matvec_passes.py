"""Projections of one row by few threadgroups, each of which takes several tiles of the weight's rows."""

from dataclasses import dataclass, replace

from mlxr.compiler.targets.metal.kernel_parts.passes import bytes_of_sums, keeps_columns, passes_of, tiles_of
from mlxr.compiler.targets.metal.kernels.matvec import MatvecKernel


@dataclass(frozen=True)
class MatvecPassesKernel(MatvecKernel):
    """A projection of one row: a threadgroup takes tiles of the weight's rows one after the other."""

    template = "matvec_passes.metal.jinja"

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the sums of all tiles, and of what a block adds."""
        return bytes_of_sums(self) + self.block_bytes


def in_passes(kernel: MatvecKernel, threadgroups: int) -> MatvecKernel:
    """The kernel with at most so many threadgroups for each span, if it can have few; 0: as it is."""
    if not threadgroups or not keeps_columns(kernel):
        return kernel
    return MatvecPassesKernel(**vars(replace(kernel, passes=passes_of(tiles_of(kernel), threadgroups))))

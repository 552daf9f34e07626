"""Projections of many rows by quantised weights, with MMA."""

from dataclasses import dataclass

from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.targets.metal.kernel_parts.head_rows import HeadRows
from mlxr.compiler.targets.metal.kernel_parts.kernel import piece_of
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts
from mlxr.compiler.targets.metal.kernel_parts.projection_kernel import ExpertRows, ProjectionKernel
from mlxr.compiler.targets.metal.kernels.gemm import GEMM_COLUMNS, GEMM_ROWS, GEMM_SIMDGROUPS

GEMM_MMA_TILE = 64
"""Rows of x per threadgroup."""


@dataclass(frozen=True)
class GemmMmaKernel(ProjectionKernel):
    """Like `GemmKernel`, but with MMA and for 64 rows of x. x is already normalised, so `norm` is None."""

    template = "gemm_mma.metal.jinja"
    mma = True

    @property
    def outs_per_threadgroup(self) -> int:
        """Outputs per threadgroup; all of its simdgroups share them."""
        return self.outs

    @property
    def x_passes(self) -> int:
        """16 bytes of x that a thread brings in a step."""
        return self.tile * 4 * self.unroll // self.threads

    def pieces_of(self, format: WeightFormat) -> int:
        """Pieces of a row in a step; a thread brings some of them, and the runs of a piece stay within the step."""
        return 32 * self.unroll // piece_of(format)

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the tiles of x and of the weight, `unroll` of each."""
        return self.unroll * (self.tile + self.rows) * GEMM_COLUMNS * self.activation.size_bytes


def gemm_mma(p: ProjectionFacts, experts: ExpertRows | None = None, heads: HeadRows | None = None) -> GemmMmaKernel:
    """The kernel of a projection.

    It takes 32 to 128 columns at once, as many as divide a row, so that their loads are in flight together.
    """
    return GemmMmaKernel(
        label=f"{p.label}_gemm_mma",
        norm=None,
        **p.fields,
        x_columns=0 if p.norm else p.x_columns,
        outs=GEMM_ROWS // p.epilogue.halves,
        simdgroups=GEMM_SIMDGROUPS,
        unroll=next(n for n in (4, 2, 1) if p.layout.columns % (n * GEMM_COLUMNS) == 0),
        tile=GEMM_MMA_TILE,
        experts=experts,
        heads=heads,
    )

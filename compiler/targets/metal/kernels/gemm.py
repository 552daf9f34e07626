"""Projections of many rows by quantised weights."""

from dataclasses import dataclass

from mlxr.compiler.targets.metal.kernel_parts.head_rows import HeadRows
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts
from mlxr.compiler.targets.metal.kernel_parts.projection_kernel import ExpertRows, ProjectionKernel

GEMM_TILE, GEMM_ROWS, GEMM_SIMDGROUPS = 32, 64, 4
"""Rows of x and of the weight that a threadgroup multiplies, and its simdgroups."""
GEMM_COLUMNS = 32
"""Columns of x and of the weight that are in threadgroup memory at once."""
_STRIDE = 36
"""Numbers from one row to the next in threadgroup memory: whole vectors, and neighbouring rows in different banks."""


@dataclass(frozen=True)
class GemmKernel(ProjectionKernel):
    """A projection of many rows: a threadgroup unpacks its weights into threadgroup memory, once for 32 rows of x."""

    template = "gemm.metal.jinja"
    mma = False

    @property
    def outs_per_threadgroup(self) -> int:
        """Outputs per threadgroup; all of its simdgroups share them."""
        return self.outs

    @property
    def stride(self) -> int:
        """Numbers from one row of a tile to the next."""
        return _STRIDE

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of a tile of x, of a tile of the weight, and of two numbers for each row of x."""
        return ((self.tile + self.rows) * self.stride + 2 * self.tile) * 4


def gemm(p: ProjectionFacts, experts: ExpertRows | None = None, heads: HeadRows | None = None) -> GemmKernel:
    """The kernel of a projection."""
    return GemmKernel(
        label=f"{p.label}_gemm",
        norm=p.norm,
        **p.fields,
        x_columns=p.x_columns,
        outs=GEMM_ROWS // p.epilogue.halves,
        simdgroups=GEMM_SIMDGROUPS,
        tile=GEMM_TILE,
        experts=experts,
        heads=heads,
    )


def can_tile(p: ProjectionFacts) -> bool:
    """Whether a weight can be unpacked into threadgroup memory: it is quantised, and its rows are whole tiles."""
    return p.is_quantised and p.layout.columns % GEMM_COLUMNS == 0

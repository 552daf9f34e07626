"""Projections of several rows with MMA by 16-bit weights, of which all comes through threadgroup memory."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from mlxr.compiler.targets.metal.kernel_parts.kernel import BLOCK_BYTES, MMA_ROWS
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts
from mlxr.compiler.targets.metal.kernel_parts.projection_kernel import ProjectionKernel

_COLUMNS = 32
"""Columns of a step that a simdgroup takes: two matrix instructions."""
_VECTOR = 16


@dataclass(frozen=True)
class MatmulStagesKernel(ProjectionKernel):
    """A projection of `tile` rows. x is already normalised, so `norm` is None.

    Attributes:
        stages: parts of the columns for which threadgroup memory has room.
        together: threadgroups that share the columns of the same rows of the weight.
        tiles: tiles of MMA_ROWS rows of the weight that a simdgroup takes.
    """

    template = "matmul_stages.metal.jinja"
    most_bytes: ClassVar[int] = BLOCK_BYTES
    _: KW_ONLY
    stages: int
    together: int
    tiles: int

    @property
    def row_groups(self) -> int:
        """Simdgroups side by side, which have all rows of the weight."""
        return self.rows // (MMA_ROWS * self.tiles)

    @property
    def shares(self) -> int:
        """Simdgroups that share the columns of a step."""
        return self.simdgroups // self.row_groups

    @property
    def columns(self) -> int:
        """Columns of a step."""
        return _COLUMNS * self.shares

    @property
    def steps(self) -> int:
        """Steps of all columns."""
        return self.in_features // self.columns

    @property
    def stride(self) -> int:
        """Numbers from the sums of one row of x to the next row's: two rows are 8 banks apart."""
        return self.rows + 4

    @property
    def stage_vectors(self) -> int:
        """Vectors of 16 bytes of a stage."""
        return (self.rows + self.tile) * self.columns // 8

    @property
    def x_copies(self) -> int:
        """Vectors of x of a stage that a thread copies, at most."""
        return -(-self.tile * self.columns // 8 // self.threads)

    @property
    def pool_vectors(self) -> int:
        """Vectors of all stages, or of the sums that are in the same memory later."""
        return max(self.stages * self.stage_vectors, -(-self.shares * self.tile * self.stride * 4 // _VECTOR))

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the stages."""
        return self.pool_vectors * _VECTOR

    @property
    def cluster(self) -> int:
        """See `MetalKernel.cluster`."""
        return self.together

    @property
    def threadgroups(self) -> int:
        """Threadgroups along the outputs."""
        return -(-self.out_features // self.outs) * self.together

    @property
    def fits(self) -> bool:
        """Whether the kernel can be made: columns are whole steps of pairs of shares, and copies whole rows."""
        if self.rows % (MMA_ROWS * self.tiles) or self.simdgroups % self.row_groups or self.out_features < self.outs:
            return False
        if self.shares % 2:  # vectors of odd rows change places with those of the next share
            return False
        rows_at_once = self.threads // (self.columns // 8)
        whole = self.outs % rows_at_once == 0 and (self.tile % rows_at_once == 0 or self.tile < rows_at_once)
        return whole and self.in_features % self.columns == 0 and self.threadgroup_bytes <= BLOCK_BYTES


def staged(p: ProjectionFacts, tile: int) -> MatmulStagesKernel | None:
    """The kernel for so many rows; None: the geometry wants none, or it cannot be made."""
    g = p.many_rows.matrix
    if (
        not g.stages
        or p.is_quantised
        or p.deterministic
        or not p.activation.is_16_bit
        or p.layout.dtype is not p.activation
    ):
        return None
    kernel = MatmulStagesKernel(
        label=f"{p.label}_mma{tile}",
        norm=None,
        **p.fields,
        outs=g.outputs // p.epilogue.halves,
        simdgroups=g.simdgroups,
        tile=tile,
        stages=g.stages,
        together=min(g.together, tile),
        tiles=min(2, g.outputs // MMA_ROWS),
    )
    return kernel if kernel.fits else None

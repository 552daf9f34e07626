"""Projections of several rows with MMA by 16-bit weights, of which all comes through threadgroup memory."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.targets.metal.kernel_parts.fused_norm import FusedNorm
from mlxr.compiler.targets.metal.kernel_parts.kernel import BLOCK_BYTES, MMA_ROWS
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts
from mlxr.compiler.targets.metal.kernel_parts.projection_kernel import ProjectionKernel

_COLUMNS = 32
"""Columns of a step that a simdgroup takes: two matrix instructions."""
_VECTOR = 16
_FEW_ROWS = 32
"""Rows of x up to which a threadgroup has other sizes than with more."""
_MOST_NORMED = 16
"""Rows of x up to which each threadgroup takes its norm, which takes it less time than a launch before it."""
_FEWEST_STAGES = 2


@dataclass(frozen=True)
class MatmulStagesKernel(ProjectionKernel):
    """A projection of `tile` rows. Of norms it has RMS norms with a weight of x's type, or none.

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
        of_norm = self.norm is not None and self.norm.weight is not None
        return (self.rows + self.tile + of_norm) * self.columns // 8

    @property
    def x_copies(self) -> int:
        """Vectors of x of a stage that a thread copies, at most."""
        return -(-self.tile * self.columns // 8 // self.threads)

    @property
    def rows_of_rank(self) -> int:
        """Rows of x that one of the threadgroups finishes that share columns."""
        return self.tile // self.together

    @property
    def squared_tiles(self) -> int:
        """Matrix instructions' tiles of x of which a simdgroup adds up the squares, if x is normalised, at most."""
        return -(-self.tile // (8 * self.row_groups))

    @property
    def pool_vectors(self) -> int:
        """Vectors of all stages, or of the sums that are in the same memory later."""
        return max(self.stages * self.stage_vectors, -(-self.shares * self.tile * self.stride * 4 // _VECTOR))

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the stages, and of the sums of squares of each share and the scale of each row."""
        return self.pool_vectors * _VECTOR + (4 * self.tile * (self.shares + 1) if self.norm else 0)

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
        return (
            self.outs % rows_at_once == 0
            and self.in_features % self.columns == 0
            and self.threadgroup_bytes <= BLOCK_BYTES
        )


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
    wide = tile > _FEW_ROWS
    outputs = g.wide_outputs if wide and g.wide_outputs else g.outputs
    together = g.wide_together if wide and g.wide_together else g.together
    kernel = MatmulStagesKernel(
        label=f"{p.label}_mma{tile}",
        norm=_norm(p) if tile <= _MOST_NORMED else None,
        **p.fields,
        outs=outputs // p.epilogue.halves,
        simdgroups=g.wide_simdgroups if wide and g.wide_simdgroups else g.simdgroups,
        tile=tile,
        stages=g.stages,
        together=min(together, tile),
        tiles=1 if outputs % (2 * MMA_ROWS) else 2,
    )
    most_bytes = g.stage_kib << 10 or BLOCK_BYTES
    while kernel.stages > _FEWEST_STAGES and kernel.threadgroup_bytes > most_bytes:
        kernel = replace(kernel, stages=kernel.stages - 1)
    return kernel if kernel.fits else None


def _norm(p: ProjectionFacts) -> FusedNorm | None:
    """The norm that the kernel can take. Numbers that are not normalised yet may be too large for f16."""
    norm = p.norm
    if norm is None or norm.kind != "rms" or norm.bias or p.x_columns or p.activation is not DType.BF16:
        return None
    return FusedNorm(norm.kind, norm.eps, p.activation if norm.weight else None)

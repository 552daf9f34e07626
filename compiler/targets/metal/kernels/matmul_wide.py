"""Projections of many rows by 16-bit weights, with MMA that reads both factors in threadgroup memory."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

from mlxr.compiler.targets.metal.kernel_parts.kernel import BLOCK_BYTES
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts
from mlxr.compiler.targets.metal.kernel_parts.projection_kernel import ProjectionKernel

_COLUMNS = 64
"""Columns of a piece of a step: 128 bytes of each row."""
_VECTOR = 16
_TOGETHER = 4
"""Simdgroups that multiply together, and have 16 rows of x each."""
_TILE_ROWS = 8
"""Rows of the weight of a tile."""
_PARTS = 64
"""Rows of x that the instructions read."""
_FEWEST_STAGES = 2
_MOST_HELD = 16
"""Addends that a thread holds."""


@dataclass(frozen=True)
class MatmulWideKernel(ProjectionKernel):
    """A projection of `tile` rows, 16 to 64.

    Attributes:
        pieces: pieces of 64 columns of a step.
        stages: steps for which threadgroup memory has room.
        together: threadgroups that share the columns of the same rows of the weight.
    """

    template = "matmul_wide.metal.jinja"
    most_bytes: ClassVar[int] = BLOCK_BYTES
    _: KW_ONLY
    pieces: int
    stages: int
    together: int

    @property
    def columns(self) -> int:
        """Columns of a step."""
        return _COLUMNS * self.pieces

    @property
    def steps(self) -> int:
        """Steps of all columns."""
        return self.in_features // self.columns

    @property
    def tiles(self) -> int:
        """Tiles of rows of the weight of a simdgroup."""
        return self.rows // (_TILE_ROWS * (self.simdgroups // _TOGETHER))

    @property
    def at_once(self) -> int:
        """Rows of which each thread copies a vector."""
        return self.threads * _VECTOR // (2 * _COLUMNS)

    @property
    def weight_copies(self) -> int:
        """Vectors of the weight of a stage that a thread copies, at most."""
        return -(-self.rows // self.at_once)

    @property
    def x_copies(self) -> int:
        """The same of x."""
        return -(-self.tile // self.at_once)

    @property
    def stage_vectors(self) -> int:
        """Vectors of 16 bytes of a stage."""
        return (self.tile + self.rows) * 2 * self.columns // _VECTOR

    @property
    def stride(self) -> int:
        """Numbers from the sums of one row of x to the next row's."""
        return self.rows + 8

    @property
    def rows_of_rank(self) -> int:
        """Rows of x that one of the threadgroups finishes that share columns."""
        return self.tile // self.together

    @property
    def addends(self) -> int:
        """Results of a thread, if a residual is added to each; 0: there is none, or they are too many to be held."""
        rows = self.rows_of_rank if self.together > 1 else self.tile
        each = -(-rows * self.outs // self.threads)
        return each if self.epilogue.residual and each <= _MOST_HELD else 0

    @property
    def pool_vectors(self) -> int:
        """Vectors of all stages, or of the sums that are there later: all, and those of some rows added up."""
        of_rank = self.rows_of_rank * self.rows if self.together > 1 else 0
        read = max(0, _PARTS - self.tile - self.rows) * 2 * _COLUMNS // _VECTOR  # after the last stage
        return max(self.stages * self.stage_vectors + read, -(-(self.tile * self.stride + of_rank) * 4 // _VECTOR))

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
        """Whether the kernel can be made: columns are whole steps, and rows of the weight whole tiles."""
        if self.simdgroups % _TOGETHER or self.rows % (_TILE_ROWS * (self.simdgroups // _TOGETHER)):
            return False
        return (
            self.in_features % self.columns == 0
            and self.out_features >= self.outs
            and self.threadgroup_bytes <= BLOCK_BYTES
        )


def wide(p: ProjectionFacts, tile: int) -> MatmulWideKernel | None:
    """The kernel for so many rows; None: the geometry wants none, or it cannot be made."""
    g = p.many_rows.matrix
    if (
        not g.wide_stages
        or tile < g.wide_rows
        or p.is_quantised
        or p.deterministic
        or not p.activation.is_16_bit
        or p.layout.dtype is not p.activation
    ):
        return None
    kernel = MatmulWideKernel(
        label=f"{p.label}_mma{tile}",
        norm=None,
        **p.fields,
        outs=(g.wide_outputs or g.outputs) // p.epilogue.halves,
        simdgroups=g.wide_simdgroups or _TOGETHER,
        tile=tile,
        pieces=g.wide_pieces,
        stages=g.wide_stages,
        together=g.wide_together or g.together,
    )
    while kernel.stages > _FEWEST_STAGES and kernel.threadgroup_bytes > BLOCK_BYTES:
        kernel = replace(kernel, stages=kernel.stages - 1)
    return kernel if kernel.fits else None

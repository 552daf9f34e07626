"""Products of many choices of each expert with MMA, of which the weight is decoded in registers as they run."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.schedule.geometry import MatrixTiles
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.kernel import BLOCK_BYTES, MMA_ROWS
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts
from mlxr.compiler.targets.metal.kernel_parts.projection_kernel import ExpertRows
from mlxr.compiler.targets.metal.kernels.expert_codes import BLOCK, BlocksKernel


@dataclass(frozen=True)
class _Near:
    """How threadgroup memory has a simdgroup's rows of a block.

    Attributes:
        vectors: of a row that are copied.
        stride: vectors from one row to the next.
        table: vectors of a row's scales, of the whole block or of half of it at a time.
        batch: instructions for which numbers are decoded while as many run: as many as there are registers for.
    """

    vectors: int
    stride: int
    table: int
    batch: int


_NEAR = {
    WeightFormat.Q4_K: _Near(vectors=9, stride=9, table=4, batch=4),
    WeightFormat.Q6_K: _Near(vectors=14, stride=15, table=2, batch=2),
}
"""Formats that the kernel can multiply."""
_VECTOR = 16
_TOGETHER = 4
"""Simdgroups that multiply together."""
_WIDTHS = (16,)
"""Columns of instructions, where a tile has no more choices."""
_MOST_CHOICES = 64
"""Columns of the largest instruction that hosts have for it."""
_REGISTERS = 512
"""Threads of a multiprocessor that have the registers which a thread needs."""
_SHARED, _MORE = 228 << 10, 1280
"""Threadgroup memory of a multiprocessor, and what it takes more for each threadgroup."""


@dataclass(frozen=True)
class ExpertWideKernel(BlocksKernel):
    """A product of a tile of an expert's choices. x is already normalised, and f16 numbers.

    Each simdgroup has MMA_ROWS rows of its own, `passes` times, and four multiply together.

    Attributes:
        stages: blocks of the weight for which threadgroup memory has room; for x there is room for two.
    """

    template = "expert_wide.metal.jinja"
    most_bytes: ClassVar[int] = BLOCK_BYTES
    _: KW_ONLY
    stages: int

    @property
    def inputs(self) -> tuple[Port, ...]:
        """As of all projections, but for x, and what scales its rows back."""
        _, *others = super().inputs
        return (("x", DType.F16), *others, ("backs", DType.F32))

    @property
    def buffer_table(self) -> str:
        """The buffers, for the head of the kernel."""
        rows = "tokens" if self.experts and self.experts.of_tokens else "choices"
        first, _, others = super().buffer_table.partition("\n")
        return f"{first.replace(str(self.activation), 'f16')}\n//   backs      [{rows}] f32\n{others}"

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of instructions: as many as a tile has choices."""
        return (*(width for width in _WIDTHS if width < self.tile), self.tile)

    @property
    def ups(self) -> int:
        """Bytes from where a simdgroup's gates would go on, after its own, to its first up."""
        gates, ups = self.spans[0].groups[0].sources
        rows = self.matrix_rows - ups.first_row + gates.first_row - self.outs
        return ups.offsets[0] - gates.offsets[0] + rows * self.row_bytes

    @property
    def aligned(self) -> bool:
        """Whether blocks begin with a vector."""
        return self.block_bytes % _VECTOR == 0

    @property
    def near(self) -> _Near:
        """The places of what is copied."""
        return _NEAR[self.format]

    @property
    def slot(self) -> int:
        """Vectors of a simdgroup's blocks of a stage."""
        return MMA_ROWS * self.near.stride

    @property
    def x_slot(self) -> int:
        """Vectors of x of a stage."""
        return self.tile * BLOCK * DType.F16.size_bytes // _VECTOR

    @property
    def x_copies(self) -> int:
        """Rows of x of which a simdgroup copies a block."""
        return -(-self.tile // self.simdgroups)

    @property
    def table(self) -> int:
        """Vectors of the scales of a simdgroup's rows."""
        return MMA_ROWS * self.near.table

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of blocks, of scales, and of three numbers for each choice."""
        own = self.simdgroups * (self.stages * self.slot + self.table)
        return (2 * self.x_slot + own) * _VECTOR + 3 * 4 * self.tile

    @property
    def resident(self) -> int:
        """Threadgroups that a multiprocessor has at once."""
        return max(1, min(_REGISTERS // self.threads, _SHARED // (self.threadgroup_bytes + _MORE)))


def expert_wide(p: ProjectionFacts, g: MatrixTiles, experts: ExpertRows) -> ExpertWideKernel | None:
    """The kernel of a prompt's product, if the geometry asks for it and it can be made."""
    formats = p.layout.formats
    if not g.wide_stages or not p.activation.is_16_bit or len(formats) != 1 or formats[0] not in _NEAR:
        return None
    simdgroups, outs = g.wide_simdgroups or g.simdgroups, MMA_ROWS // p.epilogue.halves
    if p.layout.columns % BLOCK or g.max_rows % 8 or g.max_rows > _MOST_CHOICES or simdgroups % _TOGETHER:
        return None
    groups, rest = divmod(p.out_features, outs * simdgroups)
    passes = max(1, groups // max(1, g.threadgroups)) if g.threadgroups else 1
    if rest or groups % passes or any(s.offsets[0] % _VECTOR for s in p.layout.segments):
        return None
    made = ExpertWideKernel(
        label=f"{p.label}_wide{g.max_rows}",
        norm=None,
        **p.fields,
        outs=outs,
        simdgroups=simdgroups,
        passes=passes,
        tile=g.max_rows,
        experts=experts,
        stages=g.wide_stages,
    )
    whole = made.aligned or all(s.rows * made.row_bytes % _VECTOR == 0 for s in p.layout.segments)
    return made if whole and made.threadgroup_bytes <= BLOCK_BYTES and len(made.spans) == 1 else None

"""The context of projections of several rows by matrix instructions, by quantised weights or those of 16 bits."""

from dataclasses import dataclass
from typing import ClassVar

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernels.formula import formula
from mlxr.compiler.targets.metal.kernels.projection_kernels import MatrixKernel, Span

MMA_TILES = (8, 16, 32, 64)
"""Rows of x that a threadgroup multiplies by its rows of the weight: a kernel for each."""
MMA_TILE_ROWS = 64
"""Rows of the weight of a threadgroup."""
MMA_COLUMNS = 32
"""Columns of a step; rows of weights have a whole number of them."""
MMA_QUANTISED_COLUMNS = 64
"""The same of quantised weights: a piece of 16 for each of four lanes."""


@dataclass(frozen=True)
class MatmulMmaKernel(MatrixKernel):
    """A projection of rows in tiles. x is normalised already: `norm` is None.

    All simdgroups share the columns of all rows of the threadgroup.

    Attributes:
        gather: whether `rows` names the rows of x.
        tile: rows of x of a threadgroup, of MMA_TILES.
    """

    template: ClassVar[str] = "matmul_mma.metal.jinja"
    gather: bool
    tile: int

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What the op binds, and the dims."""
        ports: list[Port] = [("x", self.activation), ("weight", self.layout.dtype), *self.epilogue.ports]
        return (*ports, *((("rows", DType.I32),) if self.gather else ()), ("dims", DType.U32))

    @property
    def threadgroup_bytes(self) -> int:
        """Sums of some rows of x."""
        return self.simdgroups * self.columns * self.stride * 4

    @property
    def columns(self) -> int:
        """Rows of x whose sums are added up at once: an instruction's."""
        return 8

    @property
    def stride(self) -> int:
        """Of these sums: two rows of them are 8 banks apart."""
        return self.rows + 4

    @property
    def steps(self) -> int:
        """Of all simdgroups."""
        return self.in_features // (MMA_QUANTISED_COLUMNS if self.quantised else MMA_COLUMNS)

    @property
    def quantised(self) -> bool:
        """Whether the weight is unpacked on the way."""
        return self.layout.dtype is DType.U8

    @property
    def threadgroups(self) -> int:
        """Threadgroups along the outputs."""
        return self.spans[-1].end if self.quantised else -(-self.out_features // self.outs)

    @property
    def guard(self) -> str:
        """What must hold also of an output that a threadgroup stores, as Metal."""
        if self.quantised:
            return "" if self.exact else " && o < end"
        return " && o >= own" if self.out_features % self.outs else ""

    @property
    def fits(self) -> bool:
        """Whether it can be made: rows of whole steps, and quantised gates and ups in one format."""
        if not self.quantised:
            return self.in_features % MMA_COLUMNS == 0 and self.out_features >= self.outs
        return (
            self.in_features % MMA_QUANTISED_COLUMNS == 0
            and all(format.is_quantised for format in self.layout.formats)
            and all(len(span.groups) == 1 for span in self.spans)
        )

    def spans_of(self, format: WeightFormat) -> list[Span]:
        """The spans of threadgroups whose rows have this format."""
        return [span for span in self.spans if span.groups[0].format is format]

    def within(self, format: WeightFormat) -> str:
        """Whether a threadgroup is in one of them, as Metal."""
        x = "threadgroup_position_in_grid.x"
        return " || ".join(f"({x} >= {span.first}u && {x} < {span.end}u)" for span in self.spans_of(format))

    @property
    def count(self) -> str:
        """The dim that counts its rows."""
        return "rows" if self.gather else "tokens"

    @property
    def formula(self) -> str:
        """What it computes, for the head of the kernel."""
        return f"out = {formula(self.epilogue, 'x[rows]' if self.gather else 'x')}"

    @property
    def buffer_table(self) -> str:
        """The buffers, for the head of the kernel."""
        return self._table(self.count, gather=self.gather)

"""The context of projections of several rows by matrix instructions, for weights of the activations' 16-bit type."""

from dataclasses import dataclass
from typing import ClassVar

from mlxr.compiler.codegen.kernels import Port
from mlxr.compiler.codegen.projection_kernels import MatrixKernel
from mlxr.compiler.dtypes import DType

MMA_TILES = (8, 16, 32, 64)
"""Rows of x that a threadgroup multiplies by its rows of the weight: a kernel for each."""
MMA_TILE_ROWS = 64
"""Rows of the weight of a threadgroup."""
MMA_COLUMNS = 32
"""Columns of a step; rows of weights have a whole number of them."""


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
        return MMA_TILE_ROWS + 4

    @property
    def steps(self) -> int:
        """Of all simdgroups."""
        return self.in_features // MMA_COLUMNS

    @property
    def count(self) -> str:
        """The dim that counts its rows."""
        return "rows" if self.gather else "tokens"

    @property
    def formula(self) -> str:
        """What it computes, for the head of the kernel."""
        return f"out = {self.epilogue.formula('x[rows]' if self.gather else 'x')}"

    @property
    def buffer_table(self) -> str:
        """The buffers, for the head of the kernel."""
        return self._table(self.count, gather=self.gather)

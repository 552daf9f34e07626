"""The rows of a value that a batch wants logits of."""

from dataclasses import dataclass

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.rows import GatherRows
from mlxr.compiler.schedule.kernel import Port, round_up
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH, MetalKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers, num_columns


@dataclass(frozen=True)
class GatherRowsKernel(MetalKernel):
    """Copies rows.

    Attributes:
        width: columns of a row.
        activation: its element type.
    """

    template = "gather_rows.metal.jinja"
    width: int
    activation: DType

    @property
    def inputs(self) -> tuple[Port, ...]:
        """All rows, and which are wanted."""
        return (("x", self.activation), ("rows", DType.I32))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Those that are wanted."""
        return (("out", self.activation),)

    @property
    def threads(self) -> int:
        """One thread for each 4 elements of a row, up to 256."""
        return min(256, round_up(-(-self.width // 4), SIMD_WIDTH))


@lowers(GatherRows)
def lower_gather_rows(lowering: MetalLowering, op: Op, attrs: GatherRows) -> None:
    """Adds the launch of an op."""
    x = lowering.value(op, "x")
    kernel = GatherRowsKernel(f"gather_rows_{num_columns(x)}", num_columns(x), x.dtype)
    lowering.emit(op, kernel, (Extent(dim="rows"),), {"out": op.out})

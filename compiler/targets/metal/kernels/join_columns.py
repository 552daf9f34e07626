"""Rows of several values, side by side."""

from dataclasses import dataclass

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.join_columns import JoinColumns
from mlxr.compiler.schedule.kernel import Port, round_up
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH, MetalKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers, num_columns


@dataclass(frozen=True)
class JoinColumnsKernel(MetalKernel):
    """Copies rows.

    Attributes:
        width: columns of each value.
        activation: their element type.
    """

    template = "join_columns.metal.jinja"
    width: int
    activation: DType

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The values, in order."""
        return tuple((port, self.activation) for port in JoinColumns.inputs)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Their rows."""
        return (("out", self.activation),)

    @property
    def threads(self) -> int:
        """One thread for each 4 elements of a value's row, up to 256."""
        return min(256, round_up(-(-self.width // 4), SIMD_WIDTH))


@lowers(JoinColumns)
def lower_join_columns(lowering: MetalLowering, op: Op, attrs: JoinColumns) -> None:
    """Adds the launch of an op."""
    x = lowering.value(op, "x")
    kernel = JoinColumnsKernel("join_columns", num_columns(x), x.dtype)
    lowering.emit(op, kernel, (Extent(dim="tokens"),), {"out": op.out})

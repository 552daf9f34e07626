"""Rows times a number."""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.stretch import Stretch
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH, MetalKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers, num_columns, row_count


@dataclass(frozen=True)
class StretchKernel(MetalKernel):
    """factor * x, rows [tokens, width].

    Attributes:
        activation: element type of x and of the result.
    """

    template = "stretch.metal.jinja"
    width: int
    factor: float
    activation: DType

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The rows."""
        return (("x", self.activation),)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The rows, stretched."""
        return (("out", self.activation),)

    @property
    def threads(self) -> int:
        """One simdgroup for each row."""
        return SIMD_WIDTH


@lowers(Stretch)
def lower_stretch(lowering: MetalLowering, op: Op, attrs: Stretch) -> None:
    """Adds the launch."""
    x = lowering.value(op, "x")
    lowering.emit(op, StretchKernel("stretch", num_columns(x), attrs.factor, x.dtype), (row_count(x),))

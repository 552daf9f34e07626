"""Rows times a number."""

from dataclasses import dataclass

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.stretch import Stretch
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel, Param
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers


@dataclass(frozen=True)
class CpuStretch(CpuKernel):
    """out = factor * x, [tokens, width] f32."""

    template = "stretch.jinja"
    width: int
    factor: float

    @property
    def params(self) -> tuple[Param, ...]:
        """The rows, and the rows stretched."""
        return (Param("x", "input"), Param("out", "output"))


@lowers(Stretch)
def lower_stretch(lowering: CpuLowering, op: Op, attrs: Stretch) -> None:
    """Adds the call."""
    lowering.add_call(op, CpuStretch("stretch", lowering.width(op, "x"), attrs.factor))

"""Rows of several values, side by side."""

from dataclasses import dataclass

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.join_columns import JoinColumns
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel, Param
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers


@dataclass(frozen=True)
class CpuJoinColumns(CpuKernel):
    """out = [x | y | z].

    Attributes:
        width: columns of each of them.
    """

    template = "join_columns.jinja"
    width: int

    @property
    def values(self) -> tuple[str, ...]:
        """Names of the values, in order."""
        return JoinColumns.inputs

    @property
    def params(self) -> tuple[Param, ...]:
        """The values, and the result."""
        return (*(Param(name, "input") for name in self.values), Param("out", "output"))


@lowers(JoinColumns)
def lower_join_columns(lowering: CpuLowering, op: Op, attrs: JoinColumns) -> None:
    """Adds the call of an op."""
    lowering.add_call(op, CpuJoinColumns(label="join_columns", width=lowering.width(op, "x")))

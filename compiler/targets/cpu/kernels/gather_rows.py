"""The rows of a value that a batch wants logits of."""

from dataclasses import dataclass

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.rows import GatherRows
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel, Param
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers


@dataclass(frozen=True)
class CpuGatherRows(CpuKernel):
    """out = x[logit_rows].

    Attributes:
        width: columns of a row.
    """

    template = "gather_rows.jinja"
    width: int

    @property
    def params(self) -> tuple[Param, ...]:
        """All rows, and those that are wanted."""
        return (Param("x", "input"), Param("out", "output"))


@lowers(GatherRows)
def lower_gather_rows(lowering: CpuLowering, op: Op, attrs: GatherRows) -> None:
    """Adds the call of an op."""
    lowering.add_call(op, CpuGatherRows(label="gather_rows", width=lowering.width(op, "x")))

"""The sum over a token's experts that the program gives a card: see templates/cpu/handover.h."""

from dataclasses import dataclass

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.handover import GiveSum
from mlxr.compiler.targets.cpu.kernel_parts.kernel import HANDOVER, CpuHelper, CpuKernel, Param
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers


@dataclass(frozen=True)
class CpuGiveSum(CpuKernel):
    """Copies rows to where the card waits for them.

    Attributes:
        width: columns of x.
    """

    template = "give_sum.jinja"
    width: int

    @property
    def helpers(self) -> tuple[CpuHelper, ...]:
        """How the program and the card take turns."""
        return (HANDOVER,)

    @property
    def params(self) -> tuple[Param, ...]:
        """The rows; nobody writes to out."""
        return (Param("x", "input"), Param("out", "output"))


@lowers(GiveSum)
def lower_give(lowering: CpuLowering, op: Op, attrs: GiveSum) -> None:
    """Adds the call for an op."""
    lowering.add_call(op, CpuGiveSum("give_sum", lowering.width(op, "x")))

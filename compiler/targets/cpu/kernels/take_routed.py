"""What the experts of a model read that a card gives the program: see templates/cpu/handover.h."""

from dataclasses import dataclass

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.handover import TakeRouted
from mlxr.compiler.targets.cpu.kernel_parts.kernel import HANDOVER, CpuHelper, CpuKernel, Param
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers


@dataclass(frozen=True)
class CpuTakeRouted(CpuKernel):
    """Waits for the card, and copies what it gives.

    Attributes:
        width: columns of x.
        top_k: experts of a token.
        weighs: whether they have weights.
        follows: whether it comes after another handover of the step.
    """

    template = "take_routed.jinja"
    width: int
    top_k: int
    weighs: bool
    follows: bool

    @property
    def helpers(self) -> tuple[CpuHelper, ...]:
        """How the program and the card take turns."""
        return (HANDOVER,)

    @property
    def params(self) -> tuple[Param, ...]:
        """What it gets; nobody reads `after`."""
        before = (Param("after", "input"),) if self.follows else ()
        weights = (Param("weights", "output"),) if self.weighs else ()
        return (*before, Param("x", "output"), Param("experts", "output_indices"), *weights)


@lowers(TakeRouted)
def lower_take(lowering: CpuLowering, op: Op, attrs: TakeRouted) -> None:
    """Adds the call for an op."""
    kernel = CpuTakeRouted("take_routed", attrs.width, attrs.top_k, "weights" in op.outputs, "after" in op.inputs)
    lowering.add_call(op, kernel)

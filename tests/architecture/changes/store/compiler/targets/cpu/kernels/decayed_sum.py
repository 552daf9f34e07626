"""The decayed sum of a sequence's rows."""

from dataclasses import dataclass

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.decayed_sum import DecayedSum
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel, Param
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers


@dataclass(frozen=True)
class CpuDecayedSum(CpuKernel):
    """out = x + s, s = x + decay * s.

    Attributes:
        store: the number of the store in the program's list.
        num_layers: layers that have rows of it.
        width: elements of a row.
    """

    template = "decayed_sum.jinja"
    store: int
    num_layers: int
    width: int
    decay: float

    @property
    def params(self) -> tuple[Param, ...]:
        """The rows, the rows and their sums, and the layer."""
        return (Param("x", "input"), Param("out", "output"), Param("layer", "layer"))


@lowers(DecayedSum)
def lower_decayed_sum(lowering: CpuLowering, op: Op, attrs: DecayedSum) -> None:
    """Adds the call."""
    layers, (store,) = lowering.layers_of(op, "sums"), lowering.stores_of(op)
    lowering.add_call(op, CpuDecayedSum("decayed_sum", store, layers, lowering.width(op, "x"), attrs.decay))

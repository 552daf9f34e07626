"""Rows in the low rank of each token's adapter."""

from dataclasses import dataclass

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.adapter import AdapterDown, adapted
from mlxr.compiler.targets.cpu.kernel_parts.kernel import ADAPTERS, CpuHelper, CpuKernel, Param
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers


@dataclass(frozen=True)
class CpuAdapterDown(CpuKernel):
    """out = scale * x @ down[part, adapter].T, [tokens, parts * rank].

    Attributes:
        width: columns of x.
        parts, rank, slots: see `AdapterDown`.
    """

    template = "adapter_down.jinja"
    width: int
    parts: int
    rank: int
    slots: int

    @property
    def params(self) -> tuple[Param, ...]:
        """x, the matrices of all adapters, and the result; ids and scales are in the batch."""
        return (Param("x", "input"), Param("down", "matrix"), Param("out", "output"))

    @property
    def helpers(self) -> tuple[CpuHelper, ...]:
        """Each token's adapter."""
        return (ADAPTERS,)


@lowers(AdapterDown)
def lower_adapter_down(lowering: CpuLowering, op: Op, attrs: AdapterDown) -> None:
    """Adds the call of an op."""
    width = lowering.width(op, "x")
    lowering.add_call(op, CpuAdapterDown(f"{adapted(op, 'down')}_low", width, attrs.parts, attrs.rank, attrs.slots))

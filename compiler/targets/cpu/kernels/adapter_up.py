"""What low-rank adapters add to finished sums, and the steps after these."""

from dataclasses import dataclass, replace
from itertools import accumulate

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.adapter import AdapterUp, adapted
from mlxr.compiler.targets.cpu.kernel_parts.finish_rows import FinishRows
from mlxr.compiler.targets.cpu.kernel_parts.kernel import ADAPTERS, CpuHelper, CpuKernel, Param
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers
from mlxr.compiler.targets.epilogue import Epilogue, epilogue_of


@dataclass(frozen=True)
class AdapterPart:
    """The columns of one projection: the first one and how many, and its number."""

    first: int
    width: int
    number: int


@dataclass(frozen=True)
class CpuAdapterUp(CpuKernel):
    """out = the epilogue of x + low @ lift[part, adapter].

    Attributes:
        widths: columns of each part.
        rank, slots: see `AdapterUp`.
        epilogue: the steps after the sums.
    """

    template = "adapter_up.jinja"
    widths: tuple[int, ...]
    rank: int
    slots: int
    epilogue: Epilogue

    @property
    def params(self) -> tuple[Param, ...]:
        """x, low, the matrices of all adapters, what the steps read, and the result."""
        params = [Param("x", "input"), Param("low", "input"), Param("lift", "matrix")]
        params += [Param("residual", "input")] if self.epilogue.residual else []
        params += [Param("gate", "input")] if self.epilogue.gate else []
        params += [Param("alpha_p", "vector"), Param("alpha_n", "vector")] if self.epilogue.alpha_p else []
        return (*params, Param("out", "output"))

    @property
    def parts(self) -> tuple[AdapterPart, ...]:
        """The parts; if gated, the gate's and the up projection's."""
        firsts = accumulate(self.widths, initial=0)
        return tuple(AdapterPart(*part) for part in zip(firsts, self.widths, range(len(self.widths)), strict=False))

    @property
    def features(self) -> int:
        """Columns of x."""
        return sum(self.widths)

    @property
    def out_features(self) -> int:
        """Columns of the result."""
        return self.features // self.epilogue.halves

    @property
    def finish(self) -> FinishRows:
        """The function that finishes its rows."""
        return FinishRows(replace(self.epilogue, times_first=None, times_width=0))

    @property
    def helpers(self) -> tuple[CpuHelper, ...]:
        """The epilogue, and each token's adapter."""
        return (self.finish, ADAPTERS)


@lowers(AdapterUp)
def lower_adapter_up(lowering: CpuLowering, op: Op, attrs: AdapterUp) -> None:
    """Adds the call of an op."""
    epilogue = epilogue_of(op, DType.F32, lambda port: DType.F32 if port in op.inputs else None)
    lowering.add_call(
        op, CpuAdapterUp(f"{adapted(op, 'lift')}_adapted", attrs.part_widths, attrs.rank, attrs.slots, epilogue)
    )

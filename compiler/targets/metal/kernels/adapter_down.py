"""Rows in the low rank of each token's adapter."""

from dataclasses import dataclass

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.adapter import AdapterDown, adapted
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH, MetalKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers, num_columns

_SIMDGROUPS = 8


@dataclass(frozen=True)
class AdapterDownKernel(MetalKernel):
    """Rows of x in the low rank of each token's adapter: a simdgroup makes one number.

    Attributes:
        width: columns of x.
        parts, rank, slots: see `AdapterDown`.
        activation: element type of x.
    """

    template = "adapter_down.metal.jinja"
    width: int
    parts: int
    rank: int
    slots: int
    activation: DType

    @property
    def inputs(self) -> tuple[Port, ...]:
        """x, the matrices of all adapters, and each token's adapter and scale."""
        of_token: tuple[Port, ...] = (("adapter_ids", DType.I32), ("adapter_scales", DType.F32))
        return (("x", self.activation), ("down", DType.F16), *of_token)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The numbers."""
        return (("out", DType.F32),)

    @property
    def simdgroups(self) -> int:
        """Numbers of a threadgroup; ranks are multiples of it."""
        return _SIMDGROUPS

    @property
    def threads(self) -> int:
        """Threads of all simdgroups."""
        return self.simdgroups * SIMD_WIDTH

    @property
    def threadgroups(self) -> int:
        """Threadgroups of a token."""
        return self.parts * self.rank // self.simdgroups


@lowers(AdapterDown)
def lower_adapter_down(lowering: MetalLowering, op: Op, attrs: AdapterDown) -> None:
    """Adds the launch of an op."""
    x = lowering.value(op, "x")
    kernel = AdapterDownKernel(
        f"{adapted(op, 'down')}_low", num_columns(x), attrs.parts, attrs.rank, attrs.slots, x.dtype
    )
    lowering.emit(op, kernel, (Extent(times=kernel.threadgroups), Extent(dim="tokens")), {"out": op.out})

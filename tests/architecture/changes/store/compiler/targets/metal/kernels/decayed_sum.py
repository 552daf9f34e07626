"""The decayed sum of a sequence's rows."""

from dataclasses import dataclass

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.decayed_sum import DecayedSum
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.arena_kernel import arena_buffers
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH, MetalKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers, num_columns


@dataclass(frozen=True)
class DecayedSumKernel(MetalKernel):
    """out = x + s, s = x + decay * s.

    Attributes:
        num_layers: layers that have rows of the store.
        width: elements of a row.
        activation: element type of x and of the result.
    """

    template = "decayed_sum.metal.jinja"
    num_layers: int
    width: int
    decay: float
    activation: DType

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The rows, whose they are, the layer, and the store."""
        tables = (("query_start", DType.I32), ("state_table", DType.I32), ("layer", DType.U32))
        return (("x", self.activation), *tables, ("sums", DType.F32), ("token", DType.U32))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The rows and their sums, and the token."""
        return (("out", self.activation), ("token_out", DType.U32))

    @property
    def threads(self) -> int:
        """A thread for each element."""
        return SIMD_WIDTH


@lowers(DecayedSum)
def lower_decayed_sum(lowering: MetalLowering, op: Op, attrs: DecayedSum) -> None:
    """Adds the launch."""
    x, layers = lowering.value(op, "x"), lowering.layers_of(op, "sums")
    kernel = DecayedSumKernel("decayed_sum", layers, num_columns(x), attrs.decay, x.dtype)
    grid = (Extent(times=-(-kernel.width // kernel.threads)), Extent(dim="seqs"))
    lowering.emit(op, kernel, grid, arena_buffers(lowering, op))

"""Short convolutions along sequences, alone and between gates."""

from dataclasses import dataclass

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import CONV_STATES
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.causal_conv import CausalConv, Convolution, GatedConv
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.arena_kernel import arena_buffers
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH, MetalKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers, num_columns

_SIMDGROUPS = 4


@dataclass(frozen=True)
class CausalConvKernel(MetalKernel):
    """act(conv(x)), or c * conv(b * x); a thread has one channel of a tile of tokens.

    Attributes:
        num_layers: layers that have rows of the store.
        channels, taps: filters, and elements of each.
        width: columns of x.
        first: the first column of x that is read.
        gated: whether x has the columns of b, of c and of x.
        silu: whether the result is activated.
        bias: whether there is one.
        tiled: whether batches have tiles of tokens; else each sequence has one token, or a threadgroup walks all of it.
        activation: element type of x and of the result.
    """

    template = "causal_conv.metal.jinja"
    num_layers: int
    channels: int
    taps: int
    width: int
    first: int
    gated: bool
    silu: bool
    bias: bool
    tiled: bool
    activation: DType

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The tokens, the filters, whose tokens they are, the layer, and the store."""
        bias: tuple[Port, ...] = (("bias", DType.F32),) if self.bias else ()
        tiles: tuple[Port, ...] = (("query_tiles", DType.I32),) if self.tiled else ()
        tables = (("query_start", DType.I32), ("state_table", DType.I32), ("layer", DType.U32))
        stores = ((CONV_STATES, DType.F32), ("token", DType.U32))
        return (("x", self.activation), ("weight", DType.F32), *bias, *tiles, *tables, *stores)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The channels' results, and the token."""
        return (("out", self.activation), ("token_out", DType.U32))

    @property
    def kept(self) -> int:
        """Inputs of a channel in a row of the store."""
        return self.taps - 1

    @property
    def threads(self) -> int:
        """Threads of a threadgroup: channels, a few simdgroups of them."""
        return min(_SIMDGROUPS, -(-self.channels // SIMD_WIDTH)) * SIMD_WIDTH


@lowers(CausalConv, GatedConv)
def lower_causal_conv(lowering: MetalLowering, op: Op, attrs: Convolution) -> None:
    """Adds the launch."""
    x = lowering.value(op, "x")
    alone = attrs if isinstance(attrs, CausalConv) else None
    kernel = CausalConvKernel(
        f"{attrs.name}_tiles" if "query_tiles" in op.inputs else attrs.name,
        num_layers=lowering.layers_of(op, CONV_STATES),
        channels=num_columns(lowering.graph.value(op.out)),
        taps=attrs.taps,
        width=num_columns(x),
        first=alone.first if alone else 0,
        gated=alone is None,
        silu=alone is not None and alone.activation == "silu",
        bias="bias" in op.inputs,
        tiled="query_tiles" in op.inputs,
        activation=x.dtype,
    )
    grid = (Extent(times=-(-kernel.channels // kernel.threads)), Extent(dim="tiles" if kernel.tiled else "seqs"))
    lowering.emit(op, kernel, grid, arena_buffers(lowering, op))

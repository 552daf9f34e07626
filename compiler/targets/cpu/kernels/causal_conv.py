"""Short convolutions along sequences, alone and between gates."""

from dataclasses import dataclass

from mlxr.compiler.formats.stores import CONV_STATES
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.causal_conv import CausalConv, Convolution, GatedConv
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel, Param
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers

_BLOCK = 16


@dataclass(frozen=True)
class CpuCausalConv(CpuKernel):
    """act(conv(x)), or c * conv(b * x).

    Attributes:
        store: the number of the store in the program's list.
        num_layers: layers that have rows of it.
        channels, taps: filters, and elements of each.
        width: columns of x.
        first: the first column of x that is read.
        gated: whether x has the columns of b, of c and of x.
        silu: whether the result is activated.
        bias: whether there is one.
    """

    template = "causal_conv.jinja"
    store: int
    num_layers: int
    channels: int
    taps: int
    width: int
    first: int
    gated: bool
    silu: bool
    bias: bool

    @property
    def params(self) -> tuple[Param, ...]:
        """The tokens, the filters, the result, and the layer."""
        bias = (Param("bias", "vector"),) if self.bias else ()
        return (Param("x", "input"), Param("weight", "vector"), *bias, Param("out", "output"), Param("layer", "layer"))

    @property
    def kept(self) -> int:
        """Inputs of a channel in a row of the store."""
        return self.taps - 1

    @property
    def padded(self) -> int:
        """Channels, whole blocks."""
        return -(-self.channels // _BLOCK) * _BLOCK

    @property
    def thread_bytes(self) -> int:
        """The last inputs and the filters of a thread's channels, by tap."""
        return 4 * 2 * self.taps * self.padded


@lowers(CausalConv, GatedConv)
def lower_causal_conv(lowering: CpuLowering, op: Op, attrs: Convolution) -> None:
    """Adds the call."""
    (store,) = lowering.stores_of(op)
    alone = attrs if isinstance(attrs, CausalConv) else None
    kernel = CpuCausalConv(
        label=attrs.name,
        store=store,
        num_layers=lowering.layers_of(op, CONV_STATES),
        channels=lowering.width(op, "weight") // attrs.taps,
        taps=attrs.taps,
        width=lowering.width(op, "x"),
        first=alone.first if alone else 0,
        gated=alone is None,
        silu=alone is not None and alone.activation == "silu",
        bias="bias" in op.inputs,
    )
    lowering.add_call(op, kernel)

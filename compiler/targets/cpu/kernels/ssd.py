"""The scan of Mamba-2."""

from dataclasses import dataclass

from mlxr.compiler.formats.stores import STATES
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.mamba2 import ConvSsd
from mlxr.compiler.ir.ops.ssd import Ssd, SsdHeads
from mlxr.compiler.targets.columns import Columns, columns_at
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuHeader, CpuHelper, CpuKernel, Param
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers

_ROWS = 16


@dataclass(frozen=True)
class CpuConvolution:
    """The convolution before a scan.

    Attributes:
        store: the number of its store in the program's list.
        channels: its channels: x, B and C.
        taps: tokens that it reads, the newest included.
        bias: whether it has one.
        x: where its input has them.
        most_seqs: sequences of a batch at most.
    """

    store: int
    channels: int
    taps: int
    bias: bool
    x: Columns
    most_seqs: int


@dataclass(frozen=True)
class CpuSsd(CpuKernel):
    """The scan of Mamba-2, in decode with the convolution before it.

    Attributes:
        store: the number of the store in the program's list.
        num_layers: layers that have rows of it.
        heads: the heads, and the limits of dt.
        x, b, c, dt, gate: where their inputs have them; `gate` None: there is none.
        conv: the convolution that makes x, B and C, in scratch; None: they are inputs.
    """

    template = "ssd.jinja"
    store: int
    num_layers: int
    heads: SsdHeads
    x: Columns
    b: Columns
    c: Columns
    dt: Columns
    gate: Columns | None = None
    conv: CpuConvolution | None = None

    @property
    def params(self) -> tuple[Param, ...]:
        """The tokens' numbers, the heads', the result, and the layer."""
        tokens = [Param("input" if self.conv else "x", "input")]
        if self.conv is None:
            tokens += [Param("bb", "input"), Param("cc", "input")]
        else:
            tokens += [Param("weight", "vector"), *([Param("bias", "vector")] if self.conv.bias else [])]
        tokens.append(Param("dt", "input"))
        gate = (Param("gate", "input"),) if self.gate else ()
        heads = (Param("a", "vector"), Param("d", "vector"), Param("dt_bias", "vector"))
        return (*tokens, *heads, *gate, Param("out", "output"), Param("layer", "layer"))

    @property
    def helpers(self) -> tuple[CpuHelper, ...]:
        """What a token does to some rows of a state."""
        return (CpuHeader("ssd.h"),)

    @property
    def blocks(self) -> int:
        """Blocks of rows of a head's state."""
        return -(-self.heads.head_dim // _ROWS)

    @property
    def thread_bytes(self) -> int:
        """A head's state."""
        return 4 * self.blocks * _ROWS * self.heads.state_dim

    @property
    def shared_bytes(self) -> int:
        """What the convolution makes of each sequence's token."""
        return 0 if self.conv is None else 4 * (self.conv.channels * self.conv.most_seqs + _ROWS)


@lowers(Ssd, ConvSsd)
def lower_ssd(lowering: CpuLowering, op: Op, attrs: SsdHeads) -> None:
    """Adds the call."""
    *of_conv, store = lowering.stores_of(op)
    columns = columns_at(lowering, op, {port: first for port, (first, _) in attrs.columns.items()})
    conv = None
    if isinstance(attrs, ConvSsd):
        has_bias, most = "bias" in op.inputs, lowering.phase_tokens
        x = columns["x"]
        conv = CpuConvolution(of_conv[0], attrs.channels, attrs.taps, has_bias, x, most)
        firsts = {"x": 0, "b": attrs.width, "c": attrs.width + attrs.shared_width}
        columns |= {port: Columns(x.dtype, attrs.channels, first) for port, first in firsts.items()}
    label, layers = "conv_ssd" if conv else "ssd", lowering.layers_of(op, STATES)
    kernel = CpuSsd(label, store, layers, attrs, conv=conv, **columns)
    names = {"input": op.inputs["x"]} if conv else {"bb": op.inputs["b"], "cc": op.inputs["c"]}
    lowering.add_call(op, kernel, names)

"""The scan of Mamba-2."""

from dataclasses import dataclass

from mlxr.compiler.formats.stores import STATES
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.mamba2 import ConvSsd
from mlxr.compiler.ir.ops.ssd import Ssd, SsdHeads
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
        x_first, x_width: the first column of its input, and the columns that this has.
        most_seqs: sequences of a batch at most.
    """

    store: int
    channels: int
    taps: int
    bias: bool
    x_first: int
    x_width: int
    most_seqs: int


@dataclass(frozen=True)
class CpuSsd(CpuKernel):
    """The scan of Mamba-2, in decode with the convolution before it.

    Attributes:
        store: the number of the store in the program's list.
        num_layers: layers that have rows of it.
        heads: the heads, and the limits of dt.
        x_first, x_width: the first column of x that is read, and the columns that x has; of the others likewise.
        gate_width: 0: there is no gate.
        conv: the convolution that makes x, B and C, in scratch; None: they are inputs.
    """

    template = "ssd.jinja"
    store: int
    num_layers: int
    heads: SsdHeads
    x_first: int
    x_width: int
    b_first: int
    b_width: int
    c_first: int
    c_width: int
    dt_first: int
    dt_width: int
    gate_first: int
    gate_width: int
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
        gate = (Param("gate", "input"),) if self.gate_width else ()
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
    of_tokens = {port: (attrs.columns[port][0], lowering.width(op, port)) for port in ("x", "dt")}
    conv = None
    if isinstance(attrs, ConvSsd):
        first, width = of_tokens["x"]
        most = lowering.phase_tokens
        conv = CpuConvolution(of_conv[0], attrs.channels, attrs.taps, "bias" in op.inputs, first, width, most)
        firsts = {"x": 0, "b": attrs.width, "c": attrs.width + attrs.shared_width}
        of_tokens |= {port: (first, attrs.channels) for port, first in firsts.items()}
    else:
        of_tokens |= {port: (attrs.columns[port][0], lowering.width(op, port)) for port in ("b", "c")}
    kernel = CpuSsd(
        label="conv_ssd" if conv else "ssd",
        store=store,
        num_layers=lowering.layers_of(op, STATES),
        heads=attrs,
        x_first=of_tokens["x"][0],
        x_width=of_tokens["x"][1],
        b_first=of_tokens["b"][0],
        b_width=of_tokens["b"][1],
        c_first=of_tokens["c"][0],
        c_width=of_tokens["c"][1],
        dt_first=of_tokens["dt"][0],
        dt_width=of_tokens["dt"][1],
        gate_first=attrs.gate_first,
        gate_width=lowering.width(op, "gate") if "gate" in op.inputs else 0,
        conv=conv,
    )
    names = {"input": op.inputs["x"]} if conv else {"bb": op.inputs["b"], "cc": op.inputs["c"]}
    lowering.add_call(op, kernel, names)

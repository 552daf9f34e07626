"""The scan of Mamba-2."""

from dataclasses import dataclass

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.ssd import STATES, Ssd
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuHeader, CpuHelper, CpuKernel, Param
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers

_ROWS = 16


@dataclass(frozen=True)
class CpuSsd(CpuKernel):
    """The scan of Mamba-2.

    Attributes:
        store: the number of the store in the program's list.
        num_layers: layers that have rows of it.
        num_heads, head_dim, num_groups, state_dim, least, most: see `Ssd`.
        x_first, x_width: the first column of x that is read, and the columns that x has; of the others likewise.
        gate_width: 0: there is no gate.
    """

    template = "ssd.jinja"
    store: int
    num_layers: int
    num_heads: int
    head_dim: int
    num_groups: int
    state_dim: int
    least: float
    most: float | None
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

    @property
    def params(self) -> tuple[Param, ...]:
        """The tokens' numbers, the heads', the result, and the layer."""
        tokens = (Param("x", "input"), Param("bb", "input"), Param("cc", "input"), Param("dt", "input"))
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
        return -(-self.head_dim // _ROWS)

    @property
    def thread_bytes(self) -> int:
        """A head's state."""
        return 4 * self.blocks * _ROWS * self.state_dim


@lowers(Ssd)
def lower_ssd(lowering: CpuLowering, op: Op, attrs: Ssd) -> None:
    """Adds the call."""
    layers, (store,) = lowering.value(op, STATES).shape[1], lowering.stores_of(op)
    assert isinstance(layers, int), "a store has a fixed size"
    kernel = CpuSsd(
        label="ssd",
        store=store,
        num_layers=layers,
        num_heads=attrs.num_heads,
        head_dim=attrs.head_dim,
        num_groups=attrs.num_groups,
        state_dim=attrs.state_dim,
        least=attrs.least,
        most=attrs.most,
        x_first=attrs.x_first,
        x_width=lowering.width(op, "x"),
        b_first=attrs.b_first,
        b_width=lowering.width(op, "b"),
        c_first=attrs.c_first,
        c_width=lowering.width(op, "c"),
        dt_first=attrs.dt_first,
        dt_width=lowering.width(op, "dt"),
        gate_first=attrs.gate_first,
        gate_width=lowering.width(op, "gate") if "gate" in op.inputs else 0,
    )
    lowering.add_call(op, kernel, {"bb": op.inputs["b"], "cc": op.inputs["c"]})

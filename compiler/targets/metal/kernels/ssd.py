"""The scan of Mamba-2."""

from dataclasses import dataclass

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import CONV_STATES, STATES
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.mamba2 import ConvSsd
from mlxr.compiler.ir.ops.ssd import Ssd, SsdHeads
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.columns import Columns, columns_at
from mlxr.compiler.targets.metal.kernel_parts.arena_kernel import arena_buffers
from mlxr.compiler.targets.metal.kernel_parts.kernel import MetalKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers

_LANES, _MANY_LANES = 8, 16
_FEW_THREADS = 256
_QUAD = 4
_MOST_ROWS = 32
_MOST_TILE = 16
_TILE_BYTES = 16384


@dataclass(frozen=True)
class Convolution:
    """The convolution before a scan.

    Attributes:
        channels: its channels: x, B and C.
        taps: tokens that it reads, the newest included.
        bias: whether it has one.
    """

    channels: int
    taps: int
    bias: bool


@dataclass(frozen=True)
class SsdKernel(MetalKernel):
    """The scan of Mamba-2, in decode with the convolution before it.

    Attributes:
        num_layers: layers that have rows of the store.
        heads: the heads, and the limits of dt.
        x, b, c, dt, gate: where their inputs have them; `gate` None: there is none; `b` and `c` None: the convolution
            makes them of its channels, which begin with x.
        tile: tokens that are brought to threadgroup memory together.
        conv: the convolution; None: x, B and C are inputs.
        beside: threads of a threadgroup where this is a part of a kernel, which passes the token; 0: it is alone.
    """

    template = "ssd.metal.jinja"
    num_layers: int
    heads: SsdHeads
    x: Columns
    b: Columns | None
    c: Columns | None
    dt: Columns
    gate: Columns | None
    tile: int
    conv: Convolution | None = None
    beside: int = 0

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The tokens' numbers, the heads', whose tokens they are, the layer, and the store."""
        of_tokens = {"x": self.x, "b": self.b, "c": self.c, "dt": self.dt, "gate": self.gate}
        tokens = tuple((port, columns.dtype) for port, columns in of_tokens.items() if columns is not None)
        heads = tuple((port, DType.F32) for port in ("a", "d", "dt_bias"))
        tables = (("query_start", DType.I32), ("state_table", DType.I32), ("layer", DType.U32))
        stores: tuple[str, ...] = (CONV_STATES, STATES) if self.conv else (STATES,)
        filters = ("weight", *(["bias"] if self.conv.bias else [])) if self.conv else ()
        kept = tuple((port, DType.F32) for port in (*filters, *stores))
        return (*tokens, *heads, *kept, *tables, ("token", DType.U32))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The heads' results, and the token."""
        return (("out", self.x.dtype), ("token_out", DType.U32))

    @property
    def lanes(self) -> int:
        """Lanes that share a row of a state."""
        return _LANES if self.beside <= _FEW_THREADS else _MANY_LANES

    @property
    def quads(self) -> int:
        """Vectors of 4 elements that a lane holds."""
        return -(-self.heads.state_dim // (_QUAD * self.lanes))

    @property
    def exact(self) -> bool:
        """Whether no lane holds elements past the end of its row."""
        return self.heads.state_dim == self.quads * _QUAD * self.lanes

    @property
    def rows(self) -> int:
        """Rows of a state that a threadgroup has."""
        if self.beside:
            return self.beside // self.lanes
        simdgroup = 32 // self.lanes
        return min(_MOST_ROWS, -(-self.heads.head_dim // simdgroup) * simdgroup)

    @property
    def splits(self) -> int:
        """Threadgroups that share a head."""
        return -(-self.heads.head_dim // self.rows)

    @property
    def threadgroups(self) -> int:
        """Threadgroups of a sequence."""
        return self.heads.num_heads * self.splits

    @property
    def threads(self) -> int:
        """Threads of a threadgroup."""
        return self.rows * self.lanes

    @property
    def threadgroup_bytes(self) -> int:
        """B, C, dt and decays of a tile, and x of a convolution."""
        return 4 * (self.tile * (2 * self.heads.state_dim + 2) + (self.rows if self.conv else 0))


def most_tokens(state_dim: int) -> int:
    """The most tokens of prompts that are brought to threadgroup memory together."""
    return max(1, min(_MOST_TILE, _TILE_BYTES // (8 * state_dim)))


@lowers(Ssd, ConvSsd)
def lower_ssd(lowering: MetalLowering, op: Op, attrs: SsdHeads) -> None:
    """Adds the launch.

    Raises:
        PlanError: rows of a state cannot be read 4 elements at a time.
    """
    if attrs.state_dim % _QUAD:
        raise PlanError(
            f"op {op.name!r} has states of {attrs.state_dim} columns, and Metal kernels read {_QUAD} at a time: "
            f"expected a multiple of {_QUAD}"
        )

    columns = columns_at(lowering, op, {port: first for port, (first, _) in attrs.columns.items()})
    conv = None
    if isinstance(attrs, ConvSsd):
        conv = Convolution(attrs.channels, attrs.taps, "bias" in op.inputs)
    kernel = SsdKernel(
        "conv_ssd" if conv else "ssd",
        num_layers=lowering.layers_of(op, STATES),
        heads=attrs,
        x=columns["x"],
        b=columns.get("b"),
        c=columns.get("c"),
        dt=columns["dt"],
        gate=columns.get("gate"),
        tile=1 if lowering.phase == "decode" else most_tokens(attrs.state_dim),
        conv=conv,
    )
    grid = (Extent(times=kernel.threadgroups), Extent(dim="seqs"))
    lowering.emit(op, kernel, grid, arena_buffers(lowering, op))

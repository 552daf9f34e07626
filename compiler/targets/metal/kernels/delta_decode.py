"""All of a gated delta layer between its projections, in a decode step."""

from dataclasses import dataclass, replace

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import CONV_STATES, STATES
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.delta_net import DeltaDecode
from mlxr.compiler.ir.tensor import Tensor
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.columns import Columns, columns_at
from mlxr.compiler.targets.metal.kernel_parts.arena_kernel import arena_buffers
from mlxr.compiler.targets.metal.kernel_parts.delta_kernel import TILE, DeltaKernel, check_quads
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH
from mlxr.compiler.targets.metal.kernels.head_product import HeadProductKernel, heads_kernel
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers

_MOST_SIMDGROUPS = 16
_VECTORS = ("weight", "rate", "dt_bias", "norm")
_OUTPUTS = 8
"""Rows of a head's matrix that a simdgroup takes at once, as in latent attention."""


@dataclass(frozen=True)
class DeltaDecodeKernel(DeltaKernel):
    """Convolution, rule, norm and gate of one token of each sequence.

    Attributes:
        x, a, b, gate: where their inputs have them; x has queries, keys and values.
        products: those that make a head's decays and its gate of columns of a and gate; none if they are the numbers.
    """

    template = "delta_decode.metal.jinja"
    heads: DeltaDecode
    x: Columns
    a: Columns
    b: Columns
    gate: Columns
    products: tuple[HeadProductKernel, ...]

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The tokens' numbers, the layer's, matrices, which slots, the layer, and the stores."""
        tokens = tuple((port, getattr(self, port).dtype) for port in ("x", "a", "b", "gate"))
        vectors = tuple((port, DType.F32) for port in _VECTORS)
        matrices = tuple((port, product.layout.dtype) for port, product in self.matrices)
        stores = ((CONV_STATES, DType.F32), (STATES, DType.F32))
        tables = (("state_table", DType.I32), ("layer", DType.U32))
        return (*tokens, *vectors, *matrices, *tables, *stores, ("token", DType.U32))

    @property
    def matrices(self) -> tuple[tuple[str, HeadProductKernel], ...]:
        """The products by the ports of their matrices."""
        return tuple(zip(self.heads.head_products, self.products, strict=True))

    @property
    def matrix_table(self) -> str:
        """The lines on the matrices, for the head of the kernel."""
        return "".join(f"//   {row}\n" for port, product in self.matrices for row in product.rows_of(port))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The gated heads, and the token."""
        return (("out", self.x.dtype), ("token_out", DType.U32))

    @property
    def kept(self) -> int:
        """Inputs of a channel in the store."""
        return self.heads.taps - 1

    @property
    def is_first_of_key(self) -> str:
        """Whether `head` is the first one that its key serves, in Metal; empty where it is the only one."""
        if self.heads.ratio == 1:
            return ""
        return f"head < {self.heads.num_key_heads}u" if self.heads.tiled else f"head % {self.heads.ratio}u == 0"

    @property
    def simdgroups(self) -> int:
        """Simdgroups of a threadgroup."""
        return min(_MOST_SIMDGROUPS, self.tiles)

    @property
    def tiles_each(self) -> int:
        """Tiles of a simdgroup."""
        return -(-self.tiles // self.simdgroups)

    @property
    def ragged_columns(self) -> bool:
        """Whether some lanes have columns past the last one."""
        return self.heads.value_dim != self.tiles_each * self.simdgroups * TILE

    @property
    def threads(self) -> int:
        """Threads of a threadgroup."""
        return self.simdgroups * SIMD_WIDTH

    @property
    def threadgroup_bytes(self) -> int:
        """The head's channels, what products make, and the simdgroups' sums."""
        made = self.heads.key_dim + self.heads.value_dim if self.products else 0
        return 4 * (2 * self.heads.key_dim + self.heads.value_dim + made + self.simdgroups)


@lowers(DeltaDecode)
def lower_delta_decode(lowering: MetalLowering, op: Op, attrs: DeltaDecode) -> None:
    """Adds the launch.

    Raises:
        PlanError: rows of states cannot be read 4 elements at a time.
    """
    check_quads(op, attrs)
    firsts = {"x": attrs.q_first, "a": attrs.decay_first, "b": attrs.beta_first, "gate": attrs.gate_column}
    columns = columns_at(lowering, op, firsts)
    x = Tensor(("tokens", attrs.rank), columns["x"].dtype)
    products = tuple(
        replace(heads_kernel(lowering, op, product, op.inputs[port], x), outs=_OUTPUTS, simdgroups=1)
        for port, product in attrs.head_products.items()
    )
    kernel = DeltaDecodeKernel("delta_decode", lowering.layers_of(op, STATES), attrs, products=products, **columns)
    lowering.emit(op, kernel, (Extent(times=attrs.num_heads), Extent(dim="seqs")), arena_buffers(lowering, op))

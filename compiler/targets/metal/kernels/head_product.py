"""Products of each head with a matrix of its own, and the queries of latent attention."""

from dataclasses import dataclass

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import RopeLayout
from mlxr.compiler.ir.ops.latent import HeadMatrices, HeadProduct, LatentQueries
from mlxr.compiler.schedule.geometry import OneRow
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.epilogue import Epilogue
from mlxr.compiler.targets.metal.kernel_parts.matrix_kernel import MatrixKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers, num_columns

_IGNORED = OneRow.names("mma", "split", "unroll")


@dataclass(frozen=True)
class HeadProductKernel(MatrixKernel):
    """out[head] = x[head] @ weight[head].T, and behind it the rest of x[head], rotated.

    Attributes:
        out_features: outputs of one head's product. The weight has the rows of all heads, one head after the other.
        num_heads: heads.
        x_width, head_columns: columns of x, and from one of its heads to the next.
        frequencies: of the columns of a head after those that are multiplied, which are rotated; empty: there are none.
        rope_layout, rope_scale: see `RopeKernel`.
    """

    template = "head_product.metal.jinja"
    num_heads: int
    x_width: int
    head_columns: int
    frequencies: tuple[float, ...]
    rope_layout: RopeLayout
    rope_scale: float

    @property
    def inputs(self) -> tuple[Port, ...]:
        """x, the weight, and the positions if something is rotated."""
        positions: tuple[Port, ...] = (("positions", DType.I32),) if self.frequencies else ()
        return (("x", self.activation), ("weight", self.layout.dtype), *positions)

    @property
    def rotary_dim(self) -> int:
        """Columns of a head that are rotated."""
        return 2 * len(self.frequencies)

    @property
    def head_dim(self) -> int:
        """Elements of what is rotated: all of the rest of a head."""
        return self.rotary_dim

    @property
    def of_head(self) -> int:
        """Columns from one head's result to the next."""
        return self.out_features + self.rotary_dim

    @property
    def products(self) -> int:
        """Threadgroups along the outputs of a head's product; one more rotates."""
        return self.spans[-1].end

    @property
    def threadgroups(self) -> int:
        """Threadgroups of a head."""
        return self.products + (1 if self.frequencies else 0)

    @property
    def buffer_table(self) -> str:
        """The buffers, for the head of the kernel."""
        rows = self._matrix_table(f"[tokens, {self.x_width}]")
        rows.append(f"out        [tokens, {self.num_heads}, {self.of_head}] {self.epilogue.out}")
        return "".join(f"//   {row}\n" for row in rows)


@lowers(HeadProduct, LatentQueries)
def lower_head_product(lowering: MetalLowering, op: Op, attrs: HeadMatrices) -> None:
    """Adds the launch of the products of all heads and tokens."""
    layout, x = lowering.layouts[op.inputs["weight"]], lowering.value(op, "x")
    queries = attrs if isinstance(attrs, LatentQueries) else None
    label = "latent_queries" if queries else "head_product"
    choice = lowering.table.choose(Site.of_weight(label, layout, attrs.num_heads))
    kernel = HeadProductKernel(
        label,
        in_features=layout.columns,
        out_features=layout.rows // attrs.num_heads,
        layout=layout,
        activation=x.dtype,
        norm=None,
        epilogue=Epilogue(out=lowering.graph.value(op.out).dtype),
        outs=choice.geometry.one_row.outputs,
        simdgroups=choice.geometry.one_row.simdgroups,
        num_heads=attrs.num_heads,
        x_width=num_columns(x),
        head_columns=attrs.head_dim,
        frequencies=lowering.value(op, "frequencies").data if queries else (),
        rope_layout=queries.rope_layout if queries else "half",
        rope_scale=queries.rope_scale if queries else 1.0,
    )
    grid = (Extent(times=kernel.threadgroups), Extent(times=kernel.num_heads, dim="tokens"))
    lowering.emit(op, kernel, grid, {"out": op.out}, chosen=choice.sizes(OneRow, without=_IGNORED))

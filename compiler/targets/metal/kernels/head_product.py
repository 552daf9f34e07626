"""Products of each head with a matrix of its own, and the queries of latent attention."""

from collections.abc import Mapping
from dataclasses import dataclass

from mlxr.compiler.artifact.launch import Condition, Extent
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_layout import WeightLayout
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.latent import HeadMatrices, HeadProduct, LatentQueries
from mlxr.compiler.ir.tensor import Tensor
from mlxr.compiler.schedule.geometry import OneRow, UnpackedTiles
from mlxr.compiler.schedule.geometry_rules import Choice
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.epilogue import Epilogue
from mlxr.compiler.targets.metal.kernel_parts.head_rows import HeadRows
from mlxr.compiler.targets.metal.kernel_parts.matrix_kernel import MatrixKernel
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts
from mlxr.compiler.targets.metal.kernel_parts.projection_kernel import ProjectionKernel
from mlxr.compiler.targets.metal.kernels.gemm import GEMM_COLUMNS, gemm
from mlxr.compiler.targets.metal.kernels.gemm_mma import gemm_mma
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers

_IGNORED = OneRow.names("mma", "stages", "split", "unroll", "threadgroups")


@dataclass(frozen=True)
class HeadProductKernel(MatrixKernel):
    """out[head] = x[head] @ weight[head].T, and behind it the rest of x[head], rotated.

    Attributes:
        out_features: outputs of one head's product. The weight has the rows of all heads, one head after the other.
        heads: the heads of x.
        x_width: columns of x.
        in_threadgroup: whether x is in threadgroup memory, in f32; only of products within another kernel.
    """

    template = "head_product.metal.jinja"
    heads: HeadRows
    x_width: int
    in_threadgroup: bool = False

    @property
    def x_loads(self) -> str:
        """See `MatrixKernel`."""
        return "row" if self.in_threadgroup else super().x_loads

    @property
    def inputs(self) -> tuple[Port, ...]:
        """x, the weight, and the positions if something is rotated."""
        positions: tuple[Port, ...] = (("positions", DType.I32),) if self.heads.frequencies else ()
        return (("x", self.activation), ("weight", self.layout.dtype), *positions)

    @property
    def of_head(self) -> int:
        """Columns from one head's result to the next."""
        return self.out_features + self.heads.rotary_dim

    @property
    def products(self) -> int:
        """Threadgroups along the outputs of a head's product; one more rotates."""
        return self.spans[-1].end

    @property
    def threadgroups(self) -> int:
        """Threadgroups of a head."""
        return self.products + (1 if self.heads.frequencies else 0)

    @property
    def buffer_table(self) -> str:
        """The buffers, for the head of the kernel."""
        rows = self._matrix_table(f"[tokens, {self.x_width}]")
        rows[0] += f": from column {self.heads.first} on" if self.heads.first else ""
        rows.append(f"out        [tokens, {self.heads.num_heads}, {self.of_head}] {self.epilogue.out}")
        return "".join(f"//   {row}\n" for row in rows)


@lowers(HeadProduct, LatentQueries)
def lower_head_product(lowering: MetalLowering, op: Op, attrs: HeadMatrices) -> None:
    """Adds the launch of the products of all heads and tokens, and that of many tokens, which share each matrix."""
    names = {"x": op.inputs["x"], "weight": op.inputs["weight"], "out": op.out}
    kernel = heads_kernel(lowering, op, attrs, names["weight"], lowering.value(op, "x").tensor)
    choice = _choice(lowering, kernel.label, kernel.layout, attrs)
    unpacked, most = choice.geometry.many_rows.unpacked, lowering.limits["tokens"]
    if lowering.deterministic or not _can_tile(kernel) or unpacked.min_rows > most:
        launch_heads(lowering, op, attrs, names)
        return
    if unpacked.min_rows > 1:
        launch_heads(lowering, op, attrs, names, Condition(dim="tokens", maximum=unpacked.min_rows - 1))
    facts = ProjectionFacts(
        label=kernel.label,
        out_features=kernel.out_features,
        layout=kernel.layout,
        activation=kernel.activation,
        norm=None,
        epilogue=kernel.epilogue,
        gather=False,
        one_row_alone=False,
        dim="tokens",
        most_rows=most,
        deterministic=False,
        choice=choice,
        x_columns=kernel.x_width,
    )
    with_mma = bool(unpacked.mma) and kernel.activation.is_16_bit
    tiles: ProjectionKernel = gemm_mma(facts, heads=kernel.heads) if with_mma else gemm(facts, heads=kernel.heads)
    grid = (
        Extent(times=tiles.threadgroups + (1 if kernel.heads.frequencies else 0)),
        Extent(times=kernel.heads.num_heads, dim="tokens", per=tiles.tile),
    )
    many = Condition(dim="tokens", minimum=unpacked.min_rows)
    lowering.emit(op, tiles, grid, names | {"dims": "dims"}, when=many, chosen=choice.sizes(UnpackedTiles))


def _can_tile(kernel: HeadProductKernel) -> bool:
    """Whether columns are whole tiles, and each head of x begins at a multiple of 16 bytes."""
    columns = (kernel.x_width, kernel.heads.head_columns, kernel.heads.first)
    aligned = all(width % 8 == 0 for width in columns)
    return aligned and kernel.in_features % GEMM_COLUMNS == 0


def launch_heads(
    lowering: MetalLowering, op: Op, attrs: HeadMatrices, names: Mapping[str, str], when: Condition | None = None
) -> None:
    """Adds the launch of the products of all heads and tokens.

    Args:
        lowering: of the phase.
        op: the op that it belongs to.
        attrs: the products.
        names: the buffers of x, weight and out.
        when: the launch runs only if this holds.
    """
    kernel = heads_kernel(lowering, op, attrs, names["weight"], lowering.tensor(names["x"]))
    grid = (Extent(times=kernel.threadgroups), Extent(times=kernel.heads.num_heads, dim="tokens"))
    chosen = _choice(lowering, kernel.label, kernel.layout, attrs).sizes(OneRow, without=_IGNORED)
    lowering.emit(op, kernel, grid, names, when=when, chosen=chosen)


def heads_kernel(lowering: MetalLowering, op: Op, attrs: HeadMatrices, weight: str, x: Tensor) -> HeadProductKernel:
    """The kernel of the products of x by a weight, which an op's frequencies rotate."""
    layout, width = lowering.layouts[weight], x.shape[-1]
    assert isinstance(width, int), "only rows are symbolic"
    queries = attrs if isinstance(attrs, LatentQueries) else None
    label = "latent_queries" if queries else "head_product"
    choice = _choice(lowering, label, layout, attrs)
    return HeadProductKernel(
        label,
        in_features=layout.columns,
        out_features=layout.rows // attrs.num_heads,
        layout=layout,
        activation=x.dtype,
        norm=None,
        epilogue=Epilogue(out=attrs.dtype),
        outs=choice.geometry.one_row.outputs,
        simdgroups=choice.geometry.one_row.simdgroups,
        heads=HeadRows(
            num_heads=attrs.num_heads,
            head_columns=attrs.head_dim,
            first=attrs.skipped,
            activation=x.dtype,
            frequencies=lowering.value(op, "frequencies").data if queries else (),
            rope_layout=queries.rope_layout if queries else "half",
            rope_scale=queries.rope_scale if queries else 1.0,
        ),
        x_width=width,
    )


def _choice(lowering: MetalLowering, label: str, layout: WeightLayout, attrs: HeadMatrices) -> Choice:
    return lowering.table.choose(Site.of_weight(label, layout, attrs.num_heads))

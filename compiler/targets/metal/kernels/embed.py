"""The embedding: rows of a table."""

from dataclasses import dataclass

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.formats.weight_layout import WeightLayout
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.rows import Embed
from mlxr.compiler.schedule.kernel import Port, round_up
from mlxr.compiler.targets.metal.kernel_parts.kernel import PIECE, SIMD_WIDTH, MetalKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers


@dataclass(frozen=True)
class EmbedKernel(MetalKernel):
    """scale * table[token_ids], rows of a table [vocab, hidden], or those of positions, added to a residual.

    Attributes:
        layout: where the rows of the table lie, and in which format.
        activation: element type of the result.
        scale: factor of the rows.
        first_row: the id of the table's first row; ids that it has no row for give zeros. None: it has all rows.
        ids: what the rows are of: `token_ids` or `positions`.
        residual: whether the rows are added to one.
    """

    template = "embed.metal.jinja"
    layout: WeightLayout
    activation: DType
    scale: float
    first_row: int | None = None
    ids: str = "token_ids"
    residual: bool = False

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The numbers of the rows, the table, and the residual if there is one."""
        ports = ((self.ids, DType.I32), ("table", self.layout.dtype))
        return (*ports, ("residual", self.activation)) if self.residual else ports

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The rows."""
        return (("out", self.activation),)

    @property
    def format(self) -> WeightFormat:
        """The table's format."""
        return self.layout.formats[0]

    @property
    def threads(self) -> int:
        """One thread per 8 elements (16 of a quantised table), up to 256."""
        return min(256, round_up(self.layout.columns // (PIECE if self.format.is_quantised else 8), SIMD_WIDTH))


@lowers(Embed)
def lower_embed(lowering: MetalLowering, op: Op, attrs: Embed) -> None:
    """Adds the launch of the embedding."""
    layout = lowering.layouts[op.inputs["table"]]
    ids = op.inputs["ids"]
    kernel = EmbedKernel(
        "embed",
        layout,
        lowering.graph.value(op.out).dtype,
        attrs.scale,
        attrs.first_row,
        ids=ids,
        residual="residual" in op.inputs,
    )
    lowering.emit(op, kernel, (Extent(dim="tokens"),), {ids: ids, "out": op.out})

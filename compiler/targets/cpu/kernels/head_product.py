"""Products of each head with a matrix of its own; see templates/cpu/heads.h."""

from dataclasses import dataclass

from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_layout import PANEL_ROWS
from mlxr.compiler.ir.graph import Op, Value
from mlxr.compiler.ir.op_kind import RopeLayout
from mlxr.compiler.ir.ops.latent import HeadMatrices, HeadProduct, LatentQueries
from mlxr.compiler.targets.cpu.kernel_parts.finish_rows import FinishRows
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuHeader, CpuHelper, Param
from mlxr.compiler.targets.cpu.kernel_parts.matrix_kernel import (
    TILE_ROWS,
    CpuMatrixKernel,
    OutputSegment,
    weight_buffers,
)
from mlxr.compiler.targets.cpu.kernels.rope_table import rope_table_buffers
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers
from mlxr.compiler.targets.epilogue import Epilogue


@dataclass(frozen=True)
class CpuHeads(CpuMatrixKernel):
    """out[head] = x[head] @ w[head].T, and behind it the rest of x[head], rotated.

    Attributes:
        segments: see `CpuMatrixKernel`; the tensor has the matrices of all heads, and `rows` counts one head's.
        num_heads: heads.
        x_width, head_columns: columns of x, and from one of its heads to the next.
        rotary_dim: columns of a head after those that are multiplied, which are rotated; 0: none.
        rope_layout: see `Rope`.
        first: the column of x with which the first head begins.
    """

    template = "head_product.jinja"
    num_heads: int = 1
    x_width: int = 0
    head_columns: int = 0
    rotary_dim: int = 0
    rope_layout: RopeLayout = "half"
    first: int = 0

    @property
    def params(self) -> tuple[Param, ...]:
        """x, the weight, the table of rotations, out."""
        table = (Param("rope_table", "input"),) if self.rotary_dim else ()
        return (*self._first_params, *table, Param("out", "output"))

    @property
    def helpers(self) -> tuple[CpuHelper, ...]:
        """The multiplication of its matrices, the epilogue, and the products of heads."""
        return (*super().helpers, CpuHeader("heads.h"))

    @property
    def head_rows(self) -> int:
        """Outputs of a head's product."""
        return self.segments[0].rows

    @property
    def of_head(self) -> int:
        """Columns from one head's result to the next."""
        return self.head_rows + self.rotary_dim

    @property
    def out_width(self) -> int:
        """Columns of the result."""
        return self.num_heads * self.of_head

    @property
    def finish(self) -> FinishRows:
        """The function that stores sums."""
        return FinishRows(self.epilogue)

    @property
    def formula(self) -> str:
        """The formula, for the head of the function."""
        product = "x[h] @ w0[h].T"
        return f"{self.label}: out[h] = {f'[{product} | rope(rest of x[h])]' if self.rotary_dim else product}"

    @property
    def buffer_table(self) -> str:
        """Its buffers, for the head of the function."""
        begins = f" from column {self.first} on" if self.first else ""
        rows = [
            f"x        [tokens, {self.x_width}] f32: {self.num_heads} heads of {self.head_columns}{begins}",
            f"w0       [{self.num_heads}, {self.head_rows}, {self.in_features}] {self.segments[0].format}",
        ]
        if self.rotary_dim:
            rows.append(f"rope_table [tokens, {self.rotary_dim}] f32: cosines, then sines")
        rows.append(f"out      [tokens, {self.num_heads}, {self.of_head}] f32")
        return "".join(f"//   {row}\n" for row in rows)

    @property
    def thread_bytes(self) -> int:
        """A row in f32, a token's heads, and the scratch for many rows."""
        own = (self.num_heads + TILE_ROWS) * self._row_bytes
        return (self.in_features + 31) // 32 * 128 + own + self._many_bytes

    @property
    def shared_bytes(self) -> int:
        """The rows of all heads, with those that a tile may read past the last one."""
        return (self.max_rows * self.num_heads + TILE_ROWS) * self._row_bytes


@lowers(HeadProduct, LatentQueries)
def lower_head_product(lowering: CpuLowering, op: Op, attrs: HeadMatrices) -> None:
    """Adds the call for an op.

    Raises:
        PlanError: a head's rows of a quantised weight do not fill whole panels.
    """
    kernel = heads_kernel(lowering, attrs, lowering.value(op, "weight"), lowering.width(op, "x"))
    table = rope_table_buffers(lowering, op, attrs.rope_scale) if isinstance(attrs, LatentQueries) else {}
    lowering.add_call(op, kernel, weight_buffers(lowering, op) | table)


def heads_kernel(lowering: CpuLowering, attrs: HeadMatrices, weight: Value, x_width: int) -> CpuHeads:
    """The kernel of products by a weight, of x with this many columns.

    Raises:
        PlanError: a head's rows of a quantised weight do not fill whole panels.
    """
    (part,) = weight.parts
    format, rows = lowering.spec.weights.of_tensor(part), lowering.shapes[part][0] // attrs.num_heads
    if format.is_quantised and rows % PANEL_ROWS:
        raise PlanError(
            f"{part} has {rows} rows a head in {format}; target cpu packs {PANEL_ROWS} rows together: make them a "
            "multiple of that, or the format a float one"
        )
    queries = attrs if isinstance(attrs, LatentQueries) else None
    return CpuHeads(
        label="latent_queries" if queries else "head_product",
        in_features=lowering.shapes[part][1],
        segments=(OutputSegment(format, rows),),
        compute=lowering.compute,
        max_rows=lowering.max_tokens,
        epilogue=Epilogue(out=DType.F32),
        num_heads=attrs.num_heads,
        x_width=x_width,
        head_columns=attrs.head_dim,
        rotary_dim=queries.rope_dim if queries else 0,
        rope_layout=queries.rope_layout if queries else "half",
        first=attrs.skipped,
    )

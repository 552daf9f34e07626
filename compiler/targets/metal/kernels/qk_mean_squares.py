"""What a rank adds to the mean squares of the queries and of the keys of all ranks."""

from dataclasses import dataclass

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.shared_norm import MeanSquares, QkMeanSquares
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH, MetalKernel
from mlxr.compiler.targets.metal.kernel_parts.row_sums import QUAD, check_columns, simdgroups_for, sums_bytes
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers, num_columns, row_count


@dataclass(frozen=True)
class QkMeanSquaresKernel(MetalKernel):
    """The sums of squares of a row's queries and of its keys, each divided by the columns of all ranks.

    Attributes:
        num_heads, num_kv_heads, head_dim: heads of qkv [tokens, (num_heads + 2 num_kv_heads) * head_dim].
        q_width, k_width, counts_keys: see `MeanSquares`.
        activation: element type of qkv.
        more_columns: columns of qkv behind the values.
    """

    template = "qk_mean_squares.metal.jinja"
    num_heads: int
    num_kv_heads: int
    head_dim: int
    q_width: int
    k_width: int
    counts_keys: bool
    activation: DType
    more_columns: int = 0

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The packed projection."""
        return (("qkv", self.activation),)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Both parts, side by side."""
        return (("out", DType.F32),)

    @property
    def loads(self) -> tuple[tuple[str, int], ...]:
        """The vector loads that it needs: element type, and elements of a load."""
        return ((str(self.activation), QUAD),)

    @property
    def width(self) -> int:
        """Columns of qkv."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim + self.more_columns

    @property
    def simdgroups(self) -> int:
        """Simdgroups that share the queries, or the keys."""
        return simdgroups_for(self.num_heads * self.head_dim)

    @property
    def threads(self) -> int:
        """Threads of all simdgroups."""
        return self.simdgroups * SIMD_WIDTH

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the simdgroups' sums."""
        return sums_bytes("rms", self.simdgroups)


@lowers(QkMeanSquares)
def lower_qk_mean_squares(lowering: MetalLowering, op: Op, attrs: QkMeanSquares) -> None:
    """Adds the launch of the mean squares."""
    qkv = lowering.value(op, "qkv")
    kernel = QkMeanSquaresKernel(
        "qk_mean_squares",
        num_heads=attrs.num_heads,
        num_kv_heads=attrs.num_kv_heads,
        head_dim=attrs.head_dim,
        q_width=attrs.q_width,
        k_width=attrs.k_width,
        counts_keys=attrs.counts_keys,
        activation=qkv.dtype,
        more_columns=num_columns(qkv) - (attrs.num_heads + 2 * attrs.num_kv_heads) * attrs.head_dim,
    )
    lowering.emit(op, kernel, (Extent(times=2), row_count(qkv)), {"out": op.out})


@lowers(MeanSquares)
def lower_mean_squares(lowering: MetalLowering, op: Op, attrs: MeanSquares) -> None:
    """The same of rows without keys: one head.

    Raises:
        PlanError: rows cannot be read 4 elements at a time.
    """
    assert "k" not in op.inputs, "passes pack queries and keys"
    x = lowering.value(op, "q")
    check_columns(op, num_columns(x))
    kernel = QkMeanSquaresKernel("mean_squares", 1, 0, num_columns(x), attrs.q_width, 1, False, x.dtype)
    lowering.emit(op, kernel, (Extent(times=2), row_count(x)), {"qkv": op.inputs["q"], "out": op.out})

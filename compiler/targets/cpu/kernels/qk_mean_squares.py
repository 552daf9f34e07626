"""What a rank adds to the mean squares of the queries and of the keys of all ranks."""

from dataclasses import dataclass

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.shared_norm import MeanSquares, QkMeanSquares
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel, Param
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers


@dataclass(frozen=True)
class CpuQkMeanSquares(CpuKernel):
    """The sums of squares of a row's queries and of its keys, each divided by the columns of all ranks.

    Attributes:
        q, k, columns: columns of the rank's queries, of its keys, and of all with the values.
        q_width, k_width, counts_keys: see `MeanSquares`.
    """

    template = "qk_mean_squares.jinja"
    q: int
    k: int
    columns: int
    q_width: int
    k_width: int
    counts_keys: bool

    @property
    def params(self) -> tuple[Param, ...]:
        """qkv, out."""
        return (Param("qkv", "input"), Param("out", "output"))


@lowers(QkMeanSquares)
def lower_qk_mean_squares(lowering: CpuLowering, op: Op, attrs: QkMeanSquares) -> None:
    """Adds the call for an op."""
    kernel = CpuQkMeanSquares(
        label="qk_mean_squares",
        q=attrs.num_heads * attrs.head_dim,
        k=attrs.num_kv_heads * attrs.head_dim,
        columns=lowering.width(op, "qkv"),
        q_width=attrs.q_width,
        k_width=attrs.k_width,
        counts_keys=attrs.counts_keys,
    )
    lowering.add_call(op, kernel)


@lowers(MeanSquares)
def lower_mean_squares(lowering: CpuLowering, op: Op, attrs: MeanSquares) -> None:
    """The same of rows without keys."""
    assert "k" not in op.inputs, "passes pack queries and keys"
    width = lowering.width(op, "q")
    kernel = CpuQkMeanSquares("mean_squares", width, 0, width, attrs.q_width, 0, counts_keys=False)
    lowering.add_call(op, kernel, {"qkv": op.inputs["q"]})

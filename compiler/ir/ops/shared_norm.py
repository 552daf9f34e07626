"""Norms over columns of which each rank of a stage has some: queries and keys of all heads, results of Mamba-2.

Each rank adds up the squares of its own columns, an `all_sum` makes the mean squares of all columns, and each rank then
normalises its own.
"""

from dataclasses import dataclass, replace

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.checks import (
    matrix,
    require,
    require_first_columns,
    require_mean_squares,
    require_positive,
    require_vector,
)
from mlxr.compiler.ir.division import PARTIAL, WHOLE, Holdings, require_whole
from mlxr.compiler.ir.op_kind import FUSED_STAGES, Division, OpKind
from mlxr.compiler.ir.tensor import Tensor, Tensors
from mlxr.compiler.ir.work import NOT_COUNTED, Dims, OpWork, Use
from mlxr.compiler.spec.share import Share


@dataclass(frozen=True)
class MeanSquares(OpKind):
    """What a rank's queries and keys add to the mean squares of all queries and of all keys.

    Without keys, `q` may be any rows of columns that ranks divide; the second number is 0.

    Attributes:
        q_width, k_width: columns of the queries and of the keys of all ranks; 0 without keys.
        counts_keys: whether the rank adds something for its keys; False if another one adds it, which has a copy.
    """

    name = "mean_squares"
    summary = "columns: sum(q^2) / q_width, and sum(k^2) / k_width or 0"
    family = "norm"
    inputs = ("q",)
    optional = ("k",)

    q_width: int
    k_width: int
    counts_keys: bool

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From q [tokens, up to q_width] and k [tokens, up to k_width] -> out [tokens, 2] f32."""
        rows, q = matrix(t, "q")
        others, k = matrix(t, "k") if "k" in t else (rows, 0)
        require(rows == others, f"q has {rows} rows, k {others}")
        require("k" in t or not self.counts_keys, "counts_keys is true, and there are no keys")
        require(q <= self.q_width, f"q has {q} columns; expected at most {self.q_width}")
        require(k <= self.k_width, f"k has {k} columns; expected at most {self.k_width}")
        return {"out": Tensor((rows, 2), DType.F32)}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """Two steps for each element."""
        return OpWork(flops=NOT_COUNTED)

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The squares of the rank's own columns. Of ranks that have the same KV head, the first one counts it."""
        heads = has["q"].columns
        if "k" not in has and heads is not None:
            return Division(self, PARTIAL)
        kv_heads = has["k"].columns if "k" in has else None
        if heads is None or kv_heads is None:
            require_whole(has, *has)
            return Division(self, WHOLE)
        first, first_kv = heads.range_of(share)[0], kv_heads.range_of(share)[0]
        counts_keys = first == first_kv * (heads.count // kv_heads.count)
        return Division(replace(self, counts_keys=counts_keys), PARTIAL)


@dataclass(frozen=True)
class QkMeanSquares(OpKind):
    """The same, of a packed projection.

    Attributes:
        num_heads, num_kv_heads, head_dim: see `Attention`; the rank's own heads.
        q_width, k_width, counts_keys: see `MeanSquares`.
    """

    name = "qk_mean_squares"
    summary = "mean_squares of the queries and keys of qkv"
    family = "norm"
    inputs = ("qkv",)
    stages = FUSED_STAGES

    num_heads: int
    num_kv_heads: int
    head_dim: int
    q_width: int
    k_width: int
    counts_keys: bool

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From qkv [tokens, (heads + kv_heads) * head_dim, and the values] -> out [tokens, 2] f32."""
        require_first_columns(t, "qkv", (self.num_heads + self.num_kv_heads) * self.head_dim)
        for name, width, heads in (("q", self.q_width, self.num_heads), ("k", self.k_width, self.num_kv_heads)):
            own = heads * self.head_dim
            require(own <= width, f"attribute {name}_width is {width}; expected at least {own}")
        return {"out": Tensor((t["qkv"].shape[0], 2), DType.F32)}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """Two steps for each element."""
        return OpWork(flops=NOT_COUNTED)


@dataclass(frozen=True)
class NormOfPart(OpKind):
    """The RMS norm of some columns of a row, by the mean square of all of them.

    Attributes:
        column: which of the mean squares: 1 of keys, 0 of others.
        eps: added to the mean square.
    """

    name = "norm_of_part"
    summary = "x / sqrt(mean_squares[column] + eps) * weight"
    family = "norm"
    inputs = ("x", "weight", "mean_squares")

    column: int
    eps: float

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, width], weight [width], mean_squares [tokens, 2] f32 -> out like x."""
        rows, width = matrix(t, "x")
        require_positive("eps", self.eps)
        require(self.column in (0, 1), f"attribute column is {self.column}; expected 0 or 1")
        require_vector(t, "weight", width)
        require_mean_squares(t, rows)
        return {"out": t["x"]}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """A few steps for each element."""
        return OpWork(flops=NOT_COUNTED)

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The rank's columns, by the mean squares of all."""
        require_whole(has, "mean_squares")
        require(has["weight"].rows == has["x"].columns, "the weight is of other columns than x")
        return Division(self, has["x"])

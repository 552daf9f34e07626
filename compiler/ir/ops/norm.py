"""Norms of rows, of some rows, and of queries and keys."""

from dataclasses import dataclass, replace

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.checks import (
    matrix,
    require,
    require_first_columns,
    require_integers,
    require_mean_squares,
    require_positive,
    require_residual,
    require_vector,
)
from mlxr.compiler.ir.division import WHOLE, Holdings, require_whole
from mlxr.compiler.ir.op_kind import FUSED_STAGES, Division, NormKind, NormScope, OpKind, RopeLayout
from mlxr.compiler.ir.ops.packed_heads import check_rotation
from mlxr.compiler.ir.tensor import Tensor, Tensors
from mlxr.compiler.ir.work import NOT_COUNTED, Dims, OpWork, Use
from mlxr.compiler.spec.share import Share


@dataclass(frozen=True)
class Norm(OpKind):
    """The norm of a row, or of each of several groups of its columns.

    Attributes:
        groups: number of equal groups of a row's columns.
        residual_scale: factor of the norm where it is added to a residual.
        kind: `rms` divides by the root of the mean square; `layer` first subtracts the mean.
        eps: added to the mean square.
    """

    name = "norm"
    summary = (
        "residual + residual_scale * (x / rms(x) or (x - mean) / deviation, of each group of columns, * weight + bias)"
    )
    family = "norm"
    inputs = ("x",)
    optional = ("weight", "bias", "residual", "scale")

    groups: int
    residual_scale: float
    kind: NormKind
    eps: float

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, width], weight and bias [width] or [width / groups], residual like x -> out like x.

        Without a weight, nothing is multiplied.
        """
        _, width = matrix(t, "x")
        groups = self.groups
        require_positive("eps", self.eps)
        require(groups >= 1 and width % groups == 0, f"x has {width} columns; expected {groups} equal groups of them")
        widths = ((width,), (width // groups,))
        for port in ("weight", "bias"):
            if port in t:
                shape = t[port].shape
                expected = " or ".join(dict.fromkeys(str(list(choice)) for choice in widths))
                require(shape in widths, f"{port} is {list(shape)}; expected {expected}")
                weight = t.get("weight", t[port]).shape
                require(shape == weight, f"bias is {list(shape)}, weight {list(weight)}")
        require_residual(t, t["x"])
        require_vector(t, "scale", 1)
        return {"out": t["x"]}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """A few steps for each element."""
        return OpWork(flops=NOT_COUNTED)

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """Each group by itself: a rank has whole groups. `share_norms` replaces norms of all columns together."""
        columns = has["x"].columns
        if columns is None:
            require_whole(has, *has)
            return Division(self, WHOLE)
        require(self.groups == columns.count, f"normalises {columns.count} {columns.of} together, of which it has some")
        for port in ("weight", "bias"):
            require(port not in has or has[port].rows in (None, columns), f"{port} is of other columns than x")
        return Division(replace(self, groups=columns.count_of(share)), has["x"])


@dataclass(frozen=True)
class NormRows(OpKind):
    """The norms of some rows, in f32: what a step gives in place of logits.

    Attributes:
        kind, eps: see `Norm`.
    """

    name = "norm_rows"
    summary = "norm of x[rows], in f32"
    family = "norm"
    inputs = ("x", "rows")
    optional = ("weight", "bias")

    kind: NormKind
    eps: float

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, width], weight and bias [width], rows [rows] i32 -> out [rows, width] f32."""
        _, width = matrix(t, "x")
        require_integers(t, "rows")
        require_positive("eps", self.eps)
        require_vector(t, "weight", width)
        require_vector(t, "bias", width)
        return {"out": Tensor((t["rows"].shape[0], width), DType.F32)}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """A few steps for each element of the rows."""
        return OpWork(flops=NOT_COUNTED, rows={"x": dims["rows"]})

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The same at every rank."""
        require_whole(has, *has)
        return Division(self, WHOLE)


@dataclass(frozen=True)
class QkNorm(OpKind):
    """The norms of the queries and of the keys of a packed projection.

    Attributes:
        num_heads, num_kv_heads, head_dim: see `Attention`.
        scope: `head`: each head is normalised, and all heads share a weight [head_dim]; `heads`: each head is
            normalised with weights of its own; `all`: all queries are normalised together, and all keys together.
        kind, eps: see `Norm`.
        rotary_dim, rope_layout, rope_scale: see `PackedHeads`: how heads are rotated before they are normalised. If
            rotary_dim is 0 they are not, and `positions` and `frequencies` are not bound.
        norms_values: whether each head of the values is normalised, too, without weights.
        values_from_keys: whether qkv has no values: they are its keys, before their norm.
        v_dim: see `Attention`.

    With mean_squares, those of all queries and of all keys, qkv has some heads of the row that is normalised.
    """

    name = "qk_norm"
    summary = "norm of the queries and keys of qkv, rotated or not, and of its values or not"
    family = "norm"
    inputs = ("qkv",)
    optional = ("q_norm", "k_norm", "q_norm_bias", "k_norm_bias", "mean_squares", "positions", "frequencies")
    stages = FUSED_STAGES

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scope: NormScope
    kind: NormKind
    eps: float
    rotary_dim: int
    rope_layout: RopeLayout
    rope_scale: float
    norms_values: bool = False
    values_from_keys: bool = False
    v_dim: int | None = None

    @property
    def given_columns(self) -> int:
        """Columns of qkv that are heads."""
        return self.columns - (self.num_kv_heads * self.head_dim if self.values_from_keys else 0)

    @property
    def columns(self) -> int:
        """Columns of the result."""
        values = self.num_kv_heads * (self.v_dim or self.head_dim)
        return (self.num_heads + self.num_kv_heads) * self.head_dim + values

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From qkv, packed heads [tokens, given_columns or more]; weights and biases as the scope says -> out.

        mean_squares is [tokens, 2] f32. With values_from_keys, qkv is [tokens, (heads + kv_heads) * head_dim], and out
        has the values, too.
        """
        require_first_columns(t, "qkv", self.given_columns)
        require(self.v_dim is None or not self.values_from_keys, "values that are keys have as many elements")
        by_heads = self.scope != "all" or not (self.norms_values or self.values_from_keys)
        require(by_heads, "values are normalised, or made of keys, by heads")
        require_positive("eps", self.eps)
        for port, count in (("q_norm", self.num_heads), ("k_norm", self.num_kv_heads)):
            width = self.head_dim if self.scope == "head" else count * self.head_dim
            require_vector(t, port, width)
            require_vector(t, f"{port}_bias", width)
        check_rotation(t, self.rotary_dim, self.rope_scale)
        require(("positions" in t) == (self.rotary_dim > 0), "positions are bound where heads are rotated")
        require(not self.rotary_dim or self.scope != "all", "heads that are rotated are normalised each by itself")
        require(("q_norm" in t) == ("k_norm" in t), "q_norm and k_norm are bound together")
        require_mean_squares(t, t["qkv"].shape[0])
        if "mean_squares" in t:
            kind = f"{self.kind} of scope {self.scope}"
            require(kind == "rms of scope all", f"the norm is {kind}; expected rms of scope all, by its mean_squares")
        return {"out": Tensor((t["qkv"].shape[0], self.columns), t["qkv"].dtype)}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """A few steps for each element."""
        return OpWork(flops=NOT_COUNTED)

"""Norms of queries and keys, before they are rotated or after it."""

from dataclasses import dataclass

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import NormKind, NormScope, RopeLayout
from mlxr.compiler.ir.ops.norm import QkNorm
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH, MetalKernel
from mlxr.compiler.targets.metal.kernel_parts.row_sums import QUAD, simdgroups_for, sums_bytes
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers, num_columns, row_count


@dataclass(frozen=True)
class QkNormKernel(MetalKernel):
    """Norms of the queries and of the keys of a packed projection; its values are copied.

    Attributes:
        num_heads, num_kv_heads, head_dim: heads of qkv [tokens, (num_heads + num_kv_heads) * head_dim + values].
        scope: what is normalised by itself. `head`: each head, and all heads share one weight [head_dim]. `heads`: each
            head, by its own part of a weight [heads * head_dim]. `all`: all queries as one row, and all keys as
            another, by weights [heads * head_dim].
        kind: `rms` or `layer`.
        eps: added to the mean square, or to the variance.
        q_norm, k_norm: element types of the weights; None: there are none.
        q_bias, k_bias: element types of the biases; None: there is no bias.
        activation: element type of qkv and of the result.
        mean_squares: whether the mean squares of all queries and of all keys are given, [tokens, 2] f32; qkv then has
            some of the heads that are normalised together.
        frequencies, rotary_dim, rope_layout, rope_scale: see `RopeKernel`: the rotation before the norm; rotary_dim is
            0 where heads are not rotated here.
        norms_values, values_from_keys: see `QkNorm`.
        more_columns: columns of qkv behind the values, which the result has not.
        v_dim: elements of a value; None: head_dim.
    """

    template = "qk_norm.metal.jinja"
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scope: NormScope
    kind: NormKind
    eps: float
    q_norm: DType | None
    k_norm: DType | None
    q_bias: DType | None
    k_bias: DType | None
    activation: DType
    mean_squares: bool = False
    frequencies: tuple[float, ...] = ()
    rotary_dim: int = 0
    rope_layout: RopeLayout = "half"
    rope_scale: float = 1.0
    norms_values: bool = False
    values_from_keys: bool = False
    more_columns: int = 0
    v_dim: int | None = None

    @property
    def value_elements(self) -> int:
        """Columns of all values."""
        return self.num_kv_heads * (self.v_dim or self.head_dim)

    @property
    def inputs(self) -> tuple[Port, ...]:
        """qkv, and, if there are any, the weights, the biases, the mean squares and the positions."""
        ports: list[Port] = [("qkv", self.activation)]
        ports += [(name, dtype) for name, dtype in (("q_norm", self.q_norm), ("k_norm", self.k_norm)) if dtype]
        if self.q_bias:
            ports.append(("q_norm_bias", self.q_bias))
        if self.k_bias:
            ports.append(("k_norm_bias", self.k_bias))
        if self.mean_squares:
            ports.append(("mean_squares", DType.F32))
        if self.rotary_dim:
            ports.append(("positions", DType.I32))
        return tuple(ports)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The result."""
        return (("out", self.activation),)

    @property
    def loads(self) -> tuple[tuple[str, int], ...]:
        """The vector loads that it needs: element type, and elements of a load."""
        dtypes = (self.activation, self.q_norm, self.k_norm, self.q_bias, self.k_bias)
        return tuple((str(d), QUAD) for d in dtypes if d)

    @property
    def sides(self) -> tuple[tuple[str, str, DType | None, DType | None], ...]:
        """For queries and for keys: first letter, the weight's name and type, and the bias's type."""
        return (("q", "q_norm", self.q_norm, self.q_bias), ("k", "k_norm", self.k_norm, self.k_bias))

    @property
    def width(self) -> int:
        """Columns of the result."""
        return (self.num_heads + self.num_kv_heads) * self.head_dim + self.value_elements

    @property
    def given_width(self) -> int:
        """Columns of qkv."""
        return self.width - (self.num_kv_heads * self.head_dim if self.values_from_keys else 0)

    @property
    def given(self) -> str:
        """What a row of qkv has, in words."""
        values = "" if self.values_from_keys else f", {self.num_kv_heads} value"
        sizes = f"{self.head_dim}, values of {self.v_dim}" if self.v_dim else f"{self.head_dim}"
        return f"{self.num_heads} query, {self.num_kv_heads} key{values} heads of {sizes}"

    @property
    def pieces(self) -> int:
        """Pieces of a row: all heads, those of the values too; in scope `all` the queries, the keys and the values."""
        return 3 if self.scope == "all" else self.num_heads + 2 * self.num_kv_heads

    @property
    def piece_elements(self) -> int:
        """Elements of the largest piece."""
        if self.scope == "all":
            return max(self.num_heads * self.head_dim, self.value_elements)
        return max(self.head_dim, self.v_dim or 0)

    @property
    def simdgroups(self) -> int:
        """Simdgroups that share a piece: one, except in scope `all`."""
        return simdgroups_for(self.piece_elements) if self.scope == "all" else 1

    @property
    def pieces_per_threadgroup(self) -> int:
        """Pieces of a threadgroup: up to 8 heads; in scope `all` one piece."""
        return 1 if self.scope == "all" else min(8, self.pieces)

    @property
    def threads(self) -> int:
        """Threads of all simdgroups."""
        return self.simdgroups * self.pieces_per_threadgroup * SIMD_WIDTH

    @property
    def quads(self) -> int:
        """Vectors of 4 elements that a lane holds."""
        return -(-self.piece_elements // (QUAD * self.simdgroups * SIMD_WIDTH))

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the simdgroups' sums."""
        return 0 if self.mean_squares else sums_bytes(self.kind, self.simdgroups)


@lowers(QkNorm)
def lower_qk_norm(lowering: MetalLowering, op: Op, attrs: QkNorm) -> None:
    """Adds the launch of the norms of queries and keys."""
    qkv = lowering.value(op, "qkv")
    kernel = QkNormKernel(
        "qk_norm",
        num_heads=attrs.num_heads,
        num_kv_heads=attrs.num_kv_heads,
        head_dim=attrs.head_dim,
        scope=attrs.scope,
        kind=attrs.kind,
        eps=attrs.eps,
        q_norm=lowering.optional_dtype(op, "q_norm"),
        k_norm=lowering.optional_dtype(op, "k_norm"),
        q_bias=lowering.optional_dtype(op, "q_norm_bias"),
        k_bias=lowering.optional_dtype(op, "k_norm_bias"),
        activation=qkv.dtype,
        mean_squares="mean_squares" in op.inputs,
        frequencies=lowering.value(op, "frequencies").data if attrs.rotary_dim else (),
        rotary_dim=attrs.rotary_dim,
        rope_layout=attrs.rope_layout,
        rope_scale=attrs.rope_scale,
        norms_values=attrs.norms_values,
        values_from_keys=attrs.values_from_keys,
        more_columns=num_columns(qkv) - attrs.given_columns,
        v_dim=attrs.v_dim,
    )
    threadgroups = -(-kernel.pieces // kernel.pieces_per_threadgroup)
    lowering.emit(op, kernel, (Extent(times=threadgroups), row_count(qkv)), {"out": op.out})

"""Norms of the queries and keys of a packed projection."""

from dataclasses import dataclass, replace

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import NormKind, NormScope, RopeLayout
from mlxr.compiler.ir.ops.attention import PackedAttention
from mlxr.compiler.ir.ops.norm import QkNorm
from mlxr.compiler.schedule.lowering import Scratch
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel, Param
from mlxr.compiler.targets.cpu.kernels.norm import CpuNorm
from mlxr.compiler.targets.cpu.kernels.rope_table import rope_table_buffers
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers


@dataclass(frozen=True)
class CpuQkNorm(CpuKernel):
    """The packed projection with its queries and keys normed, [tokens, heads * head_dim] f32.

    Attributes:
        num_heads, num_kv_heads, head_dim, kind, eps: see `QkNorm`.
        scope: `head`: each head is normalised, and all heads share weights [head_dim]; `heads`: each head is normalised
            with weights of its own, [heads * head_dim]; `all`: all query heads are normalised together, and all key
            heads together.
        weight: whether there are weights.
        bias: whether q and k each have a bias, of the shape of their weights. Only LayerNorm has biases.
        mean_squares: whether the mean squares of all queries and of all keys are given, [tokens, 2]; qkv then has some
            of the heads that are normalised together.
        rotary_dim, rope_layout: see `PackedHeads`: the rotation before the norm; rotary_dim is 0 where heads are not
            rotated here.
        norms_values, values_from_keys, v_dim: see `QkNorm`.
    """

    template = "qk_norm.jinja"
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scope: NormScope
    kind: NormKind
    eps: float
    bias: bool
    mean_squares: bool = False
    rotary_dim: int = 0
    rope_layout: RopeLayout = "half"
    more_columns: int = 0
    weight: bool = True
    norms_values: bool = False
    values_from_keys: bool = False
    v_dim: int | None = None

    @property
    def params(self) -> tuple[Param, ...]:
        """qkv, q_norm, k_norm, their biases, mean_squares, rope_table, out."""
        biases = ("q_norm_bias", "k_norm_bias") if self.bias else ()
        weights = ("q_norm", "k_norm") if self.weight else ()
        vectors = [Param(name, "vector") for name in (*weights, *biases)]
        means = (Param("mean_squares", "input"),) if self.mean_squares else ()
        table = (Param("rope_table", "input"),) if self.rotary_dim else ()
        return (Param("qkv", "input"), *vectors, *means, *table, Param("out", "output"))

    @property
    def heads(self) -> int:
        """Query, key and value heads."""
        return self.num_heads + 2 * self.num_kv_heads

    @property
    def q_width(self) -> int:
        """Columns of the queries."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of the keys."""
        return self.num_kv_heads * self.head_dim

    @property
    def value_width(self) -> int:
        """Columns of the values."""
        return self.num_kv_heads * (self.v_dim or self.head_dim)

    @property
    def qkv_width(self) -> int:
        """All columns of the result."""
        return self.q_width + self.kv_width + self.value_width

    @property
    def given_width(self) -> int:
        """Columns of qkv."""
        return self.qkv_width - (self.kv_width if self.values_from_keys else 0)

    @property
    def formula(self) -> str:
        """The formula, for the head of the function."""
        whose = {"head": "each head", "heads": "each head, with weights of its own", "all": "all heads together"}
        of = whose[self.scope] + (", those of other ranks too" if self.mean_squares else "")
        rotated = ", rotated," if self.rotary_dim else ""
        values = "values likewise, without weights" if self.norms_values else "values as they are"
        made = ", which are the keys given" if self.values_from_keys else ""
        return f"{self.label}: queries and keys{rotated} through {self.kind}_norm, {of}; {values}{made}"

    @property
    def buffer_table(self) -> str:
        """Its buffers, for the head of the function."""
        q, k = (self.head_dim,) * 2 if self.scope == "head" else (self.q_width, self.kv_width)
        rows = [f"qkv      [tokens, {self.given_width + self.more_columns}] f32"]
        if self.weight:
            rows += [f"q_norm   [{q}] f32", f"k_norm   [{k}] f32"]
        if self.bias:
            rows += [f"q_norm_bias [{q}] f32", f"k_norm_bias [{k}] f32"]
        if self.mean_squares:
            rows.append("mean_squares [tokens, 2] f32: of the queries and of the keys of all ranks")
        if self.rotary_dim:
            rows.append(f"rope_table [tokens, {self.rotary_dim}] f32: cosines, then sines")
        rows.append(f"out      [tokens, {self.qkv_width}] f32")
        return "".join(f"//   {row}\n" for row in rows)


@lowers(QkNorm)
def lower_qk_norm(lowering: CpuLowering, op: Op, attrs: QkNorm) -> None:
    """Adds the call for an op."""
    kernel = CpuQkNorm(
        label="qk_norm",
        num_heads=attrs.num_heads,
        num_kv_heads=attrs.num_kv_heads,
        head_dim=attrs.head_dim,
        scope=attrs.scope,
        kind=attrs.kind,
        eps=attrs.eps,
        bias="q_norm_bias" in op.inputs,
        mean_squares="mean_squares" in op.inputs,
        rotary_dim=attrs.rotary_dim,
        rope_layout=attrs.rope_layout,
        more_columns=lowering.width(op, "qkv") - attrs.given_columns,
        weight="q_norm" in op.inputs,
        norms_values=attrs.norms_values,
        values_from_keys=attrs.values_from_keys,
        v_dim=attrs.v_dim,
    )
    lowering.add_call(op, kernel, rope_table_buffers(lowering, op, attrs.rope_scale))


def normed_apart(lowering: CpuLowering, op: Op) -> Op:
    """The attention without the norms of its heads, for which a call is added; the op itself if it has none."""
    attrs = op.attrs_as(PackedAttention)
    if attrs.norm_eps is None:
        return op
    qkv, out = lowering.value(op, "qkv"), f"{op.name}.normed"
    reads, heads = attrs.has_keys(qkv.tensor), attrs.num_heads
    width = (heads + (2 * attrs.num_kv_heads if reads else 0)) * attrs.head_dim
    lowering.scratch.append(Scratch(out, (qkv.shape[0], width), DType.F32))
    if reads:
        norms = CpuQkNorm(
            label="qk_norm",
            num_heads=heads,
            num_kv_heads=attrs.num_kv_heads,
            head_dim=attrs.head_dim,
            scope=attrs.norm_scope,
            kind="rms",
            eps=attrs.norm_eps,
            bias=False,
            more_columns=attrs.more_columns(qkv.tensor),
            weight="q_norm" in op.inputs,
            norms_values=attrs.norms_values,
            values_from_keys=attrs.values_from_keys,
        )
        lowering.add_call(op, norms, {"out": out})
    else:
        norm = CpuNorm(
            label="norm",
            width=width,
            groups=heads,
            kind="rms",
            eps=attrs.norm_eps,
            piece_weights=attrs.norm_scope == "heads",
            bias=False,
            residual=False,
            residual_scale=1.0,
            count="tokens",
            weight="q_norm" in op.inputs,
        )
        lowering.add_call(op, norm, {"x": qkv.name, "out": out} | _weight(op))
    plain = replace(attrs, norm_eps=None, norms_values=False, values_from_keys=False)
    inputs = {port: name for port, name in op.inputs.items() if port not in ("q_norm", "k_norm")} | {"qkv": out}
    return replace(op, attrs=plain, inputs=inputs)


def _weight(op: Op) -> dict[str, str]:
    return {"weight": op.inputs["q_norm"]} if "q_norm" in op.inputs else {}

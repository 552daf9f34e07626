"""Contexts of the C kernels that work on rows alone: norms that no projection fuses, and the choice of experts."""

from dataclasses import dataclass
from typing import Literal

from mlxr.compiler.targets.cpu.kernels.kernel import CpuKernel, Param
from mlxr.compiler.targets.cpu.kernels.projection import NormKind

MOST_EXPERTS = 1024
"""What the stack of `mlxr_route` holds."""


@dataclass(frozen=True)
class CpuNorm(CpuKernel):
    """out = residual + residual_scale * norm(x), rows of f32.

    Attributes:
        width: columns of a row.
        groups: equal pieces of a row that are normed each by itself.
        piece_weights: whether each piece has its own weights, [width]; else all have the same, [width / groups].
        count: which rows there are, the batch's tokens or those that make logits.
    """

    template = "norm.jinja"
    width: int
    groups: int
    kind: NormKind
    eps: float
    piece_weights: bool
    bias: bool
    residual: bool
    residual_scale: float
    count: Literal["tokens", "rows"]

    @property
    def params(self) -> tuple[Param, ...]:
        """x, weight, bias, residual, out."""
        params = [Param("x", "input"), Param("weight", "vector")]
        if self.bias:
            params.append(Param("bias", "vector"))
        if self.residual:
            params.append(Param("residual", "input"))
        return (*params, Param("out", "output"))

    @property
    def columns(self) -> int:
        """Columns of a piece."""
        return self.width // self.groups

    @property
    def factor(self) -> float:
        """What the norm is multiplied by; 0: nothing."""
        return 0.0 if self.residual_scale == 1 else self.residual_scale

    @property
    def formula(self) -> str:
        """What it computes."""
        scale = f"{self.residual_scale} * " if self.factor else ""
        pieces = f" of {self.groups} pieces" if self.groups > 1 else ""
        return f"{self.label}: out = {'residual + ' if self.residual else ''}{scale}{self.kind}_norm(x){pieces}"

    @property
    def buffer_table(self) -> str:
        """Its buffers, for the head of the function."""
        weights = self.width if self.piece_weights else self.columns
        rows = [f"x        [{self.count}, {self.width}] f32", f"weight   [{weights}] f32"]
        if self.bias:
            rows.append(f"bias     [{weights}] f32")
        if self.residual:
            rows.append(f"residual [{self.count}, {self.width}] f32")
        rows.append(f"out      [{self.count}, {self.width}] f32")
        return "".join(f"//   {row}\n" for row in rows)


@dataclass(frozen=True)
class CpuQkNorm(CpuKernel):
    """The packed projection with its queries and keys normed, [tokens, heads * head_dim] f32.

    Attributes:
        scope: `head`: each head by itself, all with the same weights [head_dim]; `heads`: with weights of its own,
            [heads * head_dim]; `all`: all query heads as one row, all key heads as another.
        bias: whether q and k have one each, like their weights (of LayerNorm alone).
    """

    template = "qk_norm.jinja"
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scope: Literal["head", "heads", "all"]
    kind: NormKind
    eps: float
    bias: bool

    @property
    def params(self) -> tuple[Param, ...]:
        """qkv, q_norm, k_norm, their biases, out."""
        biases = ("q_norm_bias", "k_norm_bias") if self.bias else ()
        vectors = [Param(name, "vector") for name in ("q_norm", "k_norm", *biases)]
        return (Param("qkv", "input"), *vectors, Param("out", "output"))

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
        """Columns of the keys, and of the values."""
        return self.num_kv_heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        """All columns."""
        return self.q_width + 2 * self.kv_width

    @property
    def formula(self) -> str:
        """What it computes."""
        whose = {"head": "each head", "heads": "each head, with weights of its own", "all": "all heads together"}
        return f"{self.label}: queries and keys through {self.kind}_norm, {whose[self.scope]}; values as they are"

    @property
    def buffer_table(self) -> str:
        """Its buffers, for the head of the function."""
        q, k = (self.head_dim,) * 2 if self.scope == "head" else (self.q_width, self.kv_width)
        rows = [f"qkv      [tokens, {self.qkv_width}] f32", f"q_norm   [{q}] f32", f"k_norm   [{k}] f32"]
        if self.bias:
            rows += [f"q_norm_bias [{q}] f32", f"k_norm_bias [{k}] f32"]
        rows.append(f"out      [tokens, {self.qkv_width}] f32")
        return "".join(f"//   {row}\n" for row in rows)


@dataclass(frozen=True)
class CpuRoute(CpuKernel):
    """The top_k experts of each token, [tokens, top_k] i32, and their weights, [tokens, top_k] f32.

    Attributes:
        router: `softmax_topk`: weights are probabilities among all experts; `topk_softmax`: among the chosen ones;
            `sigmoid`: each expert's own.
        bias: whether [num_experts] numbers are added to the scores for the choice alone.
        normalise: whether weights are divided by their sum.
        scale: what they are multiplied by.
    """

    template = "route.jinja"
    num_experts: int
    top_k: int
    router: Literal["softmax_topk", "topk_softmax", "sigmoid"]
    bias: bool
    normalise: bool
    scale: float

    @property
    def params(self) -> tuple[Param, ...]:
        """x, bias, experts, weights."""
        bias = (Param("bias", "vector"),) if self.bias else ()
        return (Param("x", "input"), *bias, Param("experts", "output_indices"), Param("weights", "output"))

    @property
    def formula(self) -> str:
        """What it computes."""
        steps = f"{self.router}, the best {self.top_k} of {self.num_experts}"
        return f"{self.label}: {steps}{', normalised' if self.normalise else ''}, times {self.scale}"

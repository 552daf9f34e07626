"""Attention of whole texts within themselves, as in encoders: nothing is cached, and queries see keys after them."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from mlxr.compiler.ir.checks import matrix, require, require_heads, require_positive
from mlxr.compiler.ir.division import WHOLE, Holdings, require_whole
from mlxr.compiler.ir.op_kind import FUSED_STAGES, SOURCE_STAGES, Access, Division
from mlxr.compiler.ir.ops.attention import Attention
from mlxr.compiler.ir.ops.packed_heads import PackedHeads
from mlxr.compiler.ir.tensor import Tensor, Tensors
from mlxr.compiler.ir.work import Dims, OpWork, Use
from mlxr.compiler.spec.share import Share

_NO_STORES: MappingProxyType[str, Access] = MappingProxyType({})


@dataclass(frozen=True)
class TextAttention(Attention):
    """Attention of each query over all tokens of its text, all of which are in the step.

    Attributes:
        num_heads, num_kv_heads, head_dim, scale: see `Attention`.
        window: a query sees the keys that are less than so many tokens away; None for all.
        softcap, chunked, v_dim, alibi, alibi_heads, alibi_first: as for no cap, no chunks and no biases.
    """

    name = "text_attention"
    summary = "softmax(scale q k^T) v within each text, not causal"
    family = "attention"
    inputs = ("q", "k", "v", "query_start")
    optional = ()
    outputs = ("out",)
    accesses = _NO_STORES
    stages = SOURCE_STAGES

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From q [tokens, heads * head_dim], k and v [tokens, kv_heads * head_dim] -> out like q."""
        require_heads(t, "q", self.num_heads, self.head_dim)
        for port in ("k", "v"):
            require_heads(t, port, self.num_kv_heads, self.head_dim)
        _check(self.scale, self.window)
        plain = (self.softcap, self.chunked, self.v_dim, self.alibi) == (None, False, None, None)
        require(plain, "a cap, chunks, values of another size or biases, which texts do not have")
        return {"out": t["q"]}

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The same at every rank."""
        require_whole(has, *has)
        return Division(self, WHOLE)


@dataclass(frozen=True)
class PackedTextAttention(PackedHeads):
    """`TextAttention` of a packed projection, whose queries and keys it rotates.

    Attributes:
        num_heads, num_kv_heads, head_dim, rotary_dim, rope_layout, rope_scale, v_dim: see `PackedHeads`.
        scale, window: see `TextAttention`.
    """

    name = "packed_text_attention"
    summary = "RoPE of q and k, and attention within each text, not causal"
    family = "attention"
    inputs = ("qkv", "positions", "query_start", "query_tiles")
    optional = ("frequencies",)
    accesses: ClassVar[MappingProxyType[str, Access]] = _NO_STORES
    stages = FUSED_STAGES

    scale: float
    window: int | None

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From qkv [tokens, (heads + 2 kv_heads) * head_dim], frequencies [pairs] -> out [tokens, heads * head_dim]."""
        _check(self.scale, self.window)
        width = matrix(t, "qkv")[1]
        require(width == self.qkv_columns, f"qkv has {width} columns; expected {self.qkv_columns}")
        return {"out": self.check_packed(t)}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """Two FLOPs for each query head, key of its text, and element of a key and of a value."""
        tokens, seqs = dims["tokens"], dims["seqs"]
        of_text = tokens // seqs
        span = of_text if self.window is None else min(of_text, 2 * self.window - 1)
        return OpWork(flops=2 * self.num_heads * (self.head_dim + self.value_dim) * tokens * span, span=span)


def _check(scale: float, window: int | None) -> None:
    require_positive("scale", scale)
    require_positive("window", window)

"""The base of the op kinds that read queries, keys and values from one packed projection and rotate them."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from mlxr.compiler.ir.checks import require, require_cache, require_first_columns, require_positive
from mlxr.compiler.ir.op_kind import OpKind, RopeLayout
from mlxr.compiler.ir.tensor import Tensor, Tensors


@dataclass(frozen=True)
class PackedHeads(OpKind):
    """An op on qkv [tokens, (heads + kv_heads) * head_dim + kv_heads * v_dim] and the arenas.

    A gate's columns may follow in qkv.

    Kinds whose `packings` has `q` also take queries alone, [tokens, heads * head_dim]: of layers that use the keys and
    values of an earlier one.

    Attributes:
        num_heads, num_kv_heads, head_dim: see `Attention`.
        rotary_dim: number of leading elements of a head that are rotated; if 0, `frequencies` is not bound.
        rope_layout: `half` pairs element i with i + rotary_dim / 2, `interleaved` 2i with 2i + 1.
        rope_scale: factor of the cosines and sines.
        v_dim: see `Attention`.
    """

    packings: ClassVar[tuple[str, ...]] = ("qkv",)

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_layout: RopeLayout
    rope_scale: float
    _: KW_ONLY
    v_dim: int | None = None

    @property
    def value_dim(self) -> int:
        """Elements of a value."""
        return self.v_dim or self.head_dim

    @property
    def qkv_columns(self) -> int:
        """Columns of queries, keys and values."""
        return (self.num_heads + self.num_kv_heads) * self.head_dim + self.num_kv_heads * self.value_dim

    def check_packed(self, t: Tensors) -> Tensor:
        """The shape of attention's result; raises RuleError unless qkv, frequencies and arenas fit."""
        alone = "q" in self.packings and not (self.has_keys(t["qkv"]) and "qkv" in self.packings)
        require_first_columns(t, "qkv", self.num_heads * self.head_dim if alone else self.qkv_columns)
        check_rotation(t, self.rotary_dim, self.rope_scale)
        require_cache(t, self.accesses, self.num_kv_heads, self.head_dim, self.v_dim)
        return Tensor((t["qkv"].shape[0], self.num_heads * self.value_dim), t["qkv"].dtype)

    def has_keys(self, qkv: Tensor) -> bool:
        """Whether qkv has keys and values beside the queries."""
        return qkv.shape[1] != self.num_heads * self.head_dim

    def more_columns(self, qkv: Tensor) -> int:
        """Columns of qkv behind the values."""
        columns = qkv.shape[1]
        assert isinstance(columns, int), "only rows have symbolic dims"
        return columns - self.qkv_columns if self.has_keys(qkv) else 0

    def token_bytes(self, t: Tensors) -> int:
        """Bytes of the key and the value of a token in this layer."""
        rows = [(t[port].shape[3:], t[port].dtype) for port in self.accesses]
        return sum(math.prod(int(size) for size in row) * dtype.size_bytes for row, dtype in rows)


def check_rotation(t: Tensors, rotary_dim: int, rope_scale: float) -> None:
    """Raises RuleError unless there is one frequency for each rotated pair, and none without rotation."""
    pairs, bound = rotary_dim // 2, "frequencies" in t
    require(bound == (pairs > 0), f"rotary_dim is {2 * pairs}, and frequencies are {'' if bound else 'not '}bound")
    require_positive("rope_scale", rope_scale)
    if bound:
        shape = t["frequencies"].shape
        require(shape == (pairs,), f"frequencies are {list(shape)}; expected [{pairs}]")

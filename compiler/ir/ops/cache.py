"""Writes into the KV arena."""

from dataclasses import dataclass, replace

from mlxr.compiler.formats.stores import KEYS_AND_VALUES
from mlxr.compiler.ir.checks import require, require_cache, require_heads
from mlxr.compiler.ir.division import WHOLE, Holdings, alike, split
from mlxr.compiler.ir.op_kind import FUSED_STAGES, SOURCE_STAGES, Division, OpKind
from mlxr.compiler.ir.ops.packed_heads import PackedHeads
from mlxr.compiler.ir.tensor import TOKEN, Tensor, Tensors
from mlxr.compiler.ir.work import NOT_COUNTED, Dims, OpWork, Use
from mlxr.compiler.spec.share import Share


@dataclass(frozen=True)
class CacheWrite(OpKind):
    """A plain write of keys and values.

    Attributes:
        num_kv_heads, head_dim: heads of the arena, and elements of each.
        v_dim: elements of a value; None: head_dim.
    """

    name = "cache_write"
    summary = "k and v into their slots of the arena"
    family = "cache"
    inputs = ("k", "v", "slots", *KEYS_AND_VALUES)
    optional = ("token",)
    outputs = ("token",)
    accesses = dict.fromkeys(KEYS_AND_VALUES, "write")
    stages = SOURCE_STAGES

    num_kv_heads: int
    head_dim: int
    v_dim: int | None = None

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From k [tokens, kv_heads * head_dim], v [tokens, kv_heads * v_dim], slots [tokens], arenas -> token."""
        for port, size in (("k", self.head_dim), ("v", self.v_dim or self.head_dim)):
            require_heads(t, port, self.num_kv_heads, size)
        require_cache(t, self.accesses, self.num_kv_heads, self.head_dim, self.v_dim)
        return {"token": TOKEN}

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The rank's KV heads."""
        heads, values = has["k"].columns, has["v"].columns
        if heads is None or values is None:
            alike(has, "k", "v")
        else:
            same = has["k"] == split(heads) and has["v"] == split(values)
            require(
                same and (heads.of, heads.count) == (values.of, values.count), "keys are of other heads than values"
            )
        num_kv_heads = self.num_kv_heads if heads is None else heads.count_of(share)
        return Division(replace(self, num_kv_heads=num_kv_heads), WHOLE)


class RopeCacheWrite(PackedHeads):
    """A write of rotated keys and of values, both from a packed projection."""

    name = "rope_cache_write"
    summary = "prefill: RoPE of k, then k and v into the arena"
    family = "cache"
    inputs = ("qkv", "positions", "slots", *KEYS_AND_VALUES)
    optional = ("frequencies", "token")
    outputs = ("token",)
    accesses = dict.fromkeys(KEYS_AND_VALUES, "write")
    stages = FUSED_STAGES

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From qkv, frequencies, positions, slots, arenas -> token."""
        self.check_packed(t)
        return {"token": TOKEN}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """Writes the key and the value of each new token; its rotations do not count."""
        return OpWork(flops=NOT_COUNTED, store_bytes=dims["tokens"] * self.token_bytes(use.inputs))

"""Attention over the KV arena, and the split of a packed projection that it reads."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, get_args

from mlxr.compiler.formats.stores import KEYS_AND_VALUES
from mlxr.compiler.ir.checks import (
    matrix,
    require,
    require_cache,
    require_choice,
    require_heads,
    require_positive,
    require_vector,
)
from mlxr.compiler.ir.division import WHOLE, Axis, Holdings, require_whole, split
from mlxr.compiler.ir.op_kind import FUSED_STAGES, SOURCE_STAGES, Access, Division, GateKind, NormScope, OpKind
from mlxr.compiler.ir.ops.alibi import Alibi
from mlxr.compiler.ir.ops.norm import QkNorm
from mlxr.compiler.ir.ops.packed_heads import PackedHeads
from mlxr.compiler.ir.ops.rope import Temperature
from mlxr.compiler.ir.tensor import TOKEN, Tensor, Tensors
from mlxr.compiler.ir.work import Dims, OpWork, Use
from mlxr.compiler.spec.share import Share

_TABLES = ("positions", "query_start", "context_lens", "block_tables")


@dataclass(frozen=True)
class Split(OpKind):
    """Columns of a packed projection. Those of a gate may follow.

    Attributes:
        q, k, v: columns of each.
    """

    name = "split"
    summary = "columns of qkv"
    family = "gather"
    inputs = ("x",)
    outputs: ClassVar[tuple[str, ...]] = ("q", "k", "v")
    stages = SOURCE_STAGES

    q: int
    k: int
    v: int

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, q + k + v or more] -> q, k and v, columns of it."""
        rows, width = matrix(t, "x")
        sizes = {"q": self.q, "k": self.k, "v": self.v}
        require(sum(sizes.values()) <= width, f"x has {width} columns, its parts {sum(sizes.values())}")
        return {port: Tensor((rows, size), t["x"].dtype) for port, size in sizes.items() if size}

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The same at every rank: projections are merged after division."""
        require_whole(has, "x")
        return Division(self, WHOLE)


class SplitQk(Split):
    """The same of a projection without values; v is 0."""

    name = "split_qk"
    summary = "columns of qk"
    family = "gather"
    inputs = ("x",)
    outputs = ("q", "k")
    stages = SOURCE_STAGES


@dataclass(frozen=True)
class Attention(OpKind):
    """Causal attention of queries over their sequence's part of the arena.

    Attributes:
        num_heads, num_kv_heads, head_dim: query heads, heads of the arena, and elements of each.
        scale: factor of the scores.
        window: tokens that a query sees, itself included; None for all.
        softcap: turns scores into softcap * tanh(score / softcap); None for no cap.
        chunked: whether the window is the query's chunk of `window` tokens, up to itself.
        v_dim: elements of a value, and of a head's result; None: head_dim.
        alibi, alibi_heads, alibi_first: `exponent`, `heads` and `first` of `Alibi`; None, 0 and 0 for none.
    """

    name = "attention"
    summary = "softmax(scale q k^T) v over the arena, causal; sinks: one more score of each head"
    family = "attention"
    inputs: ClassVar[tuple[str, ...]] = ("q", *_TABLES, *KEYS_AND_VALUES)
    optional: ClassVar[tuple[str, ...]] = ("sinks", "token")
    outputs: ClassVar[tuple[str, ...]] = ("out", "token")
    accesses: ClassVar[Mapping[str, Access]] = dict.fromkeys(KEYS_AND_VALUES, "read")
    stages = SOURCE_STAGES

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    softcap: float | None
    chunked: bool = False
    v_dim: int | None = None
    alibi: float | None = None
    alibi_heads: int = 0
    alibi_first: int = 0

    @property
    def biases(self) -> Alibi | None:
        """The biases of scores by distance; None without them."""
        return None if self.alibi is None else Alibi(self.alibi, self.alibi_heads, self.alibi_first)

    @property
    def value_dim(self) -> int:
        """Elements of a value."""
        return self.v_dim or self.head_dim

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From q [tokens, heads * head_dim], tables, arenas, sinks [heads] -> out [tokens, heads * v_dim], token."""
        require_heads(t, "q", self.num_heads, self.head_dim)
        _check_scores(t, self)
        require_cache(t, self.accesses, self.num_kv_heads, self.head_dim, self.v_dim)
        return {"out": Tensor((t["q"].shape[0], self.num_heads * self.value_dim), t["q"].dtype), "token": TOKEN}

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The rank's query heads, over the KV heads that they read."""
        heads = has["q"].columns
        if heads is None:
            require_whole(has, "q", "sinks")
            return Division(self, WHOLE)
        sinks = has["sinks"].rows if "sinks" in has else heads
        require(sinks is not None and sinks.of == heads.of, "a rank has sinks of other heads than queries")
        num_kv_heads = Axis("kv_heads", self.num_kv_heads).count_of(share)
        results = has["q"] if self.v_dim is None else split(replace(heads, size=self.v_dim))
        first = self.alibi_first if self.alibi is None else self.alibi_first + heads.range_of(share)[0]
        own = replace(self, num_heads=heads.count_of(share), num_kv_heads=num_kv_heads, alibi_first=first)
        return Division(own, results)


@dataclass(frozen=True)
class GateHeads(OpKind):
    """A factor of each head, or of each of its elements.

    Attributes:
        num_heads: heads of x.
        kind: the function of the gate.
        first: the column of the gate's value in which the gate begins.
        size: numbers of a head's gate: 1, or as many as it has elements.
    """

    name = "gate_heads"
    summary = "x * sigmoid(gate), or softplus, of each head or element"
    family = "elementwise"
    inputs = ("x", "gate")
    stages = SOURCE_STAGES

    num_heads: int
    kind: GateKind
    first: int
    size: int

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, heads * v_dim], gate [tokens, first + heads * size or more] -> out like x."""
        require(matrix(t, "x")[1] % self.num_heads == 0, f"x has {matrix(t, 'x')[1]} columns of {self.num_heads} heads")
        check_gate(t, self.kind, self.first, self.num_heads * self.size)
        return {"out": t["x"]}

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The rank's heads."""
        heads, gated = has["x"].columns, has["gate"].columns
        if heads is None:
            require_whole(has, *has)
            return Division(self, WHOLE)
        require(gated is not None and gated.of == heads.of, "a rank has gates of other heads than x")
        return Division(replace(self, num_heads=heads.count_of(share)), has["x"])


@dataclass(frozen=True)
class PackedAttention(PackedHeads):
    """Attention that also rotates its queries and may apply a temperature to them.

    Attributes:
        num_heads, num_kv_heads, head_dim, rotary_dim, rope_layout, rope_scale, v_dim: see `PackedHeads`.
        scale, window, softcap, chunked, alibi, alibi_heads, alibi_first: see `Attention`.
        temperature_beta, temperature_context, temperature_first: `beta`, `original_context` and `first_position` of a
            `Temperature`; None, None and 0 for none.
        gate, gate_first, gate_size: `kind`, `first` and `size` of a `GateHeads`; None, 0 and 0 for none.
        norm_eps, norm_scope: of the norm of each query and key, by its mean square, before the rotation: `eps` and
            `scope` of a `QkNorm`, whose weights are q_norm and k_norm; None for no norm. Only in a decode step.
        norms_values, values_from_keys: see `QkNorm`.
    """

    scale: float
    window: int | None
    softcap: float | None
    temperature_beta: float | None
    temperature_context: int | None
    temperature_first: int = 0
    chunked: bool = False
    gate: GateKind | None = None
    gate_first: int = 0
    gate_size: int = 0
    norm_eps: float | None = None
    norm_scope: NormScope = "head"
    norms_values: bool = False
    values_from_keys: bool = False
    alibi: float | None = None
    alibi_heads: int = 0
    alibi_first: int = 0

    @property
    def biases(self) -> Alibi | None:
        """The biases of scores by distance; None without them."""
        return None if self.alibi is None else Alibi(self.alibi, self.alibi_heads, self.alibi_first)

    @property
    def qkv_columns(self) -> int:
        """See `PackedHeads`."""
        if not self.values_from_keys:
            return super().qkv_columns
        return (self.num_heads + self.num_kv_heads) * self.head_dim

    @property
    def norm_before(self) -> QkNorm | None:
        """The norms of queries, keys and values as an op of its own before this one; None without them."""
        if self.norm_eps is None:
            return None
        return QkNorm(
            self.num_heads,
            self.num_kv_heads,
            self.head_dim,
            self.norm_scope,
            "rms",
            self.norm_eps,
            rotary_dim=0,
            rope_layout="half",
            rope_scale=1.0,
            norms_values=self.norms_values,
            values_from_keys=self.values_from_keys,
        )

    @property
    def temperature(self) -> Temperature | None:
        """The temperature; None without one."""
        beta, context = self.temperature_beta, self.temperature_context
        return None if beta is None or context is None else Temperature(beta, context, self.temperature_first)

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From qkv, frequencies, batch tables, arenas and sinks [heads] -> out [tokens, heads * v_dim], token."""
        _check_scores(t, self)
        both = (self.temperature_beta is None) == (self.temperature_context is None)
        require(both, "temperature_beta and temperature_context are given together or not at all")
        require_positive("temperature_beta", self.temperature_beta)
        require_positive("temperature_context", self.temperature_context)
        require((self.gate is None) == ("gate" not in t), f"gate is {self.gate}, and its value is bound otherwise")
        if self.gate is not None:
            check_gate(t, self.gate, self.gate_first, self.num_heads * self.gate_size)
        self._check_norms(t)
        return {"out": self.check_packed(t), "token": TOKEN}

    def _check_norms(self, t: Tensors) -> None:
        if self.norm_eps is None:
            other = {"q_norm", "k_norm"} & t.keys() or self.norms_values or self.values_from_keys
            require(not other, "norm_eps is none, but weights are bound or values normalised or made of keys")
            return
        require_positive("norm_eps", self.norm_eps)
        require(self.v_dim is None, f"heads are normalised, but v_dim is {self.v_dim}; expected none")
        require(self.norm_scope in ("head", "heads"), f"norm_scope is {self.norm_scope}; expected head or heads")
        for port, count in (("q_norm", self.num_heads), ("k_norm", self.num_kv_heads)):
            require_vector(t, port, self.head_dim * (count if self.norm_scope == "heads" else 1))

    def work(self, use: Use, dims: Dims) -> OpWork:
        """Two FLOPs for each query head, key that it sees, and element of a key and of a value.

        Queries see the tokens before the step, and those of the step up to themselves. The keys and values before the
        step are read, once for each sequence, and those of the step are read or written.
        """
        tokens, seqs, context = dims["tokens"], dims["seqs"], dims["context"]
        new = tokens // seqs
        seen = context - new
        seen = min(seen, self.window - 1) if self.window else seen
        span = min(context, self.window or context)
        pairs = sum(min(seen + 1 + i, self.window or context) for i in range(new)) * seqs
        return OpWork(
            flops=2 * self.num_heads * (self.head_dim + self.value_dim) * pairs,
            store_bytes=(seen * seqs + tokens) * self.token_bytes(use.inputs),
            span=span,
        )


class RopeWriteAttention(PackedAttention):
    """All of a layer's attention in a decode step."""

    name = "rope_write_attention"
    summary = "decode: norms, RoPE, cache write and attention of one new token a sequence"
    family = "attention"
    inputs = ("qkv", "positions", "slots", "context_lens", "block_tables", *KEYS_AND_VALUES)
    optional = ("frequencies", "sinks", "gate", "q_norm", "k_norm", "token")
    outputs = ("out", "token")
    accesses = dict.fromkeys(KEYS_AND_VALUES, "readwrite")
    stages = FUSED_STAGES


class RopeReadAttention(PackedAttention):
    """All of a layer's attention in a decode step, where it uses an earlier layer's keys and values."""

    name = "rope_read_attention"
    summary = "decode: norm, RoPE and attention of one new token a sequence, whose key an earlier layer wrote"
    family = "attention"
    inputs = ("qkv", "positions", "context_lens", "block_tables", *KEYS_AND_VALUES)
    optional = ("frequencies", "sinks", "gate", "q_norm", "token")
    outputs = ("out", "token")
    accesses = dict.fromkeys(KEYS_AND_VALUES, "read")
    stages = FUSED_STAGES
    packings = ("q",)


class RopeAttention(PackedAttention):
    """A layer's attention in a prefill step; a `rope_cache_write`, of this layer or an earlier one, comes before it."""

    name = "rope_attention"
    summary = "prefill: RoPE of q and attention over the arena"
    family = "attention"
    inputs = ("qkv", "query_tiles", *_TABLES, *KEYS_AND_VALUES)
    optional = ("frequencies", "sinks", "gate", "token")
    outputs = ("out", "token")
    accesses = dict.fromkeys(KEYS_AND_VALUES, "read")
    stages = FUSED_STAGES
    packings = ("qkv", "q")


def check_gate(t: Tensors, kind: GateKind, first: int, width: int) -> None:
    """Raises RuleError unless the port `gate` has these columns."""
    require_choice("gate", kind, get_args(GateKind))
    columns = matrix(t, "gate")[1]
    require(first >= 0 and first + width <= columns, f"gate has {columns} columns; expected {width} from {first} on")


def _check_scores(t: Tensors, attention: Attention | PackedAttention) -> None:
    require_positive("scale", attention.scale)
    require_positive("softcap", attention.softcap)
    require(attention.window is not None or not attention.chunked, "chunked, but without a window")
    require_vector(t, "sinks", attention.num_heads)
    if attention.biases is not None:
        require(attention.softcap is None, "scores have a cap and biases by distance")
        attention.biases.check(attention.num_heads)

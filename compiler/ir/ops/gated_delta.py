"""The gated delta rule: a state of each head, which each token decays and corrects.

Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks" (2024); by channels: Kimi Linear (2025).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from mlxr.compiler.formats.stores import STATES
from mlxr.compiler.ir.checks import matrix, require, require_first, require_integers, require_states, require_vector
from mlxr.compiler.ir.division import WHOLE, Holdings, require_whole
from mlxr.compiler.ir.op_kind import Division, OpKind
from mlxr.compiler.ir.tensor import TOKEN, Dim, Tensor, Tensors
from mlxr.compiler.ir.work import Dims, OpWork, Use
from mlxr.compiler.spec.share import Share


@dataclass(frozen=True)
class DeltaHeads(OpKind):
    """The heads of a gated delta rule, and where their numbers are.

    Attributes:
        num_heads, num_key_heads: heads of values, and of queries and keys; each of these serves several neighbours
            of the former, or, if `tiled`, every num_key_heads-th of them.
        key_dim, value_dim: elements of a query or a key, and of a value.
        tiled: see `num_key_heads`.
        per_channel: whether each of a key's elements decays by a number of its own (KDA), or all of a head by one.
        q_first, k_first, v_first, decay_first, beta_first: the columns with which each begins in its value: those of
            `q`, `k`, `v`, `a` and `b`.
        l2_eps: added to the sum of the squares of a query or a key before it is divided by the root of that.
    """

    l2_eps: ClassVar[float] = 1e-6
    num_heads: int
    num_key_heads: int
    key_dim: int
    value_dim: int
    tiled: bool
    per_channel: bool
    q_first: int = 0
    k_first: int = 0
    v_first: int = 0
    decay_first: int = 0
    beta_first: int = 0

    @property
    def keys(self) -> int:
        """Columns of all keys, and of all queries."""
        return self.num_key_heads * self.key_dim

    @property
    def decays(self) -> int:
        """Numbers by which a token's states decay."""
        return self.num_heads * (self.key_dim if self.per_channel else 1)

    @property
    def width(self) -> int:
        """Columns of the result."""
        return self.num_heads * self.value_dim

    @property
    def state_size(self) -> int:
        """Elements of a sequence's states in a layer."""
        return self.num_heads * self.key_dim * self.value_dim

    @property
    def columns(self) -> dict[str, tuple[int, int]]:
        """By port of tokens: the first column that is read, and how many are."""
        return {
            "q": (self.q_first, self.keys),
            "k": (self.k_first, self.keys),
            "v": (self.v_first, self.width),
            "a": (self.decay_first, self.decays),
            "b": (self.beta_first, self.num_heads),
        }

    @property
    def ratio(self) -> int:
        """Heads of values to a head of keys."""
        return self.num_heads // self.num_key_heads

    def key_head(self, head: int) -> int:
        """The head of keys that a head of values has."""
        return head % self.num_key_heads if self.tiled else head // self.ratio

    def check_heads(self, t: Tensors, ports: Iterable[str]) -> None:
        """Raises RuleError unless these ports of tokens, the decays' parameters and states are those of the heads."""
        require(
            self.num_key_heads >= 1 and self.num_heads % self.num_key_heads == 0,
            f"{self.num_heads} heads of values do not share {self.num_key_heads} heads of keys evenly",
        )
        rows: Dim | None = None
        for port in ports:
            first, count = self.columns[port]
            require_first(f"the first column of {port}", first)
            given, columns = matrix(t, port)
            require(rows in (None, given), f"{port} has {given} rows, and others {rows}")
            require(columns >= first + count, f"{port} has {columns} columns; expected {count} from {first} on")
            rows = given
        require_vector(t, "rate", self.num_heads)
        require_vector(t, "dt_bias", self.decays)
        require_integers(t, "query_start")
        require_integers(t, "state_table")
        require_states(t, STATES, (self.num_heads, self.key_dim, self.value_dim))

    def delta_work(self, dims: Dims) -> OpWork:
        """Reads and writes the state of each sequence once; a token takes 8 operations for each of its elements."""
        flops, store_bytes = 8 * dims["tokens"] * self.state_size, 2 * 4 * dims["seqs"] * self.state_size
        return OpWork(flops=flops, store_bytes=store_bytes)


@dataclass(frozen=True)
class GatedDelta(DeltaHeads):
    """The states' answers to the queries.

    Of each head, with the key k, the query q, both divided by their lengths, and q by sqrt(key_dim), and the value v:
    S *= g; S += k (x) beta (v - S^T k); out = S^T q, where g = exp(rate * softplus(a + dt_bias)) with a
    negative rate, and beta is the sigmoid of b.

    Attributes:
        num_heads, num_key_heads, key_dim, value_dim, tiled, per_channel: see `DeltaHeads`, as the first columns.
    """

    name = "gated_delta"
    summary = "S = g S + k (x) beta (v - g S^T k); S^T q"
    family = "attention"
    inputs = ("q", "k", "v", "a", "b", "rate", "dt_bias", "query_start", "state_table", STATES)
    optional = ("token",)
    outputs: ClassVar[tuple[str, ...]] = ("out", "token")
    accesses = dict.fromkeys((STATES,), "readwrite")

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From q, k, v, a, b [tokens, ...], rate [heads], dt_bias [decays], states [slots, layers, ...] -> out, token.

        Rows of states are [heads, key_dim, value_dim] f32; out is [tokens, width].
        """
        self.check_heads(t, self.columns)
        return {"out": Tensor((t["v"].shape[0], self.width), t["v"].dtype), "token": TOKEN}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """Reads and writes states, and nothing else of its own."""
        return self.delta_work(dims)

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """Whole heads of keys with the values that they serve."""
        heads, keys = has["v"].columns, has["k"].columns
        if heads is None:
            require_whole(has, *(port for port in has if port not in ("query_start", "state_table", STATES)))
            return Division(self, WHOLE)
        require(not any(first for first, _ in self.columns.values()), "a rank has parts of joined columns")
        require(keys is not None and has["q"].columns == keys, "a rank has other heads of queries than of keys")
        require(not self.tiled or self.ratio == 1, "heads of values that share keys with distant ones")
        assert keys is not None
        num_heads, num_key_heads = heads.count_of(share), keys.count_of(share)
        require(num_heads == num_key_heads * self.ratio, f"{num_heads} heads of values, and {num_key_heads} of keys")
        for port, axis in [(port, has[port].columns) for port in ("a", "b")]:
            require(axis is not None and axis.of == heads.of, f"a rank has {has[port]} at {port}")
        for port, axis in [(port, has[port].rows) for port in ("rate", "dt_bias")]:
            require(axis is not None and axis.of == heads.of, f"a rank has {has[port]} at {port}")
        return Division(replace(self, num_heads=num_heads, num_key_heads=num_key_heads), has["v"])

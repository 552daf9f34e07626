"""A gated delta layer between its projections: a convolution makes queries, keys and values, which the rule takes.

The source graph has its parts apart, as files and ranks have them; passes join them.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, get_args

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import CONV_STATES, STATES
from mlxr.compiler.ir.checks import (
    matrix,
    require,
    require_choice,
    require_first,
    require_positive,
    require_states,
    require_vector,
    weight_matrix,
)
from mlxr.compiler.ir.division import WHOLE, Holdings, require_whole
from mlxr.compiler.ir.op_kind import FUSED_STAGES, SOURCE_STAGES, Division
from mlxr.compiler.ir.ops.causal_conv import CausalConv
from mlxr.compiler.ir.ops.gated_delta import DeltaHeads, GatedDelta
from mlxr.compiler.ir.ops.gated_norm import GatedNorm, NormGate
from mlxr.compiler.ir.ops.latent import HeadProduct
from mlxr.compiler.ir.tensor import TOKEN, Tensor, Tensors
from mlxr.compiler.ir.work import Dims, OpWork, Use
from mlxr.compiler.spec.share import Share

FILTERS = ("q_conv", "k_conv", "v_conv")
"""The filters of queries, keys and values, in the order of the convolution's channels."""
_TABLES = ("query_start", "state_table", CONV_STATES, STATES)
_NUMBERS = ("rate", "dt_bias")


@dataclass(frozen=True)
class ConvDeltaHeads(DeltaHeads):
    """The base of the kinds that convolve before the rule: silu(conv(q)), silu(conv(k)), silu(conv(v)).

    Attributes:
        num_heads, num_key_heads, key_dim, value_dim, tiled, per_channel: see `DeltaHeads`, as the first columns.
        taps: tokens that the convolution reads, the newest included.
    """

    taps: int = 2

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys, values."""
        return 2 * self.keys + self.width

    @property
    def convolution(self) -> CausalConv:
        """The convolution as an op of its own, of columns that begin with the queries."""
        return CausalConv(self.taps, "silu", self.q_first)

    @property
    def rule(self) -> GatedDelta:
        """The rule as an op of its own, which reads the convolution's result."""
        own = {name: value for name, value in self.attributes.items() if name in GatedDelta.__dataclass_fields__}
        return GatedDelta(**own | {"q_first": 0, "k_first": self.keys, "v_first": 2 * self.keys})  # type: ignore[arg-type]

    def check_filters(self, t: Tensors, port: str, channels: int) -> None:
        """Raises RuleError unless a weight has the taps of these channels, in f32."""
        require(self.taps > 1, f"attribute taps is {self.taps}; expected 2 or more")
        require_vector(t, port, channels * self.taps)
        require(t[port].dtype is DType.F32, f"{port} is {t[port].dtype}; expected f32")

    def work(self, use: Use, dims: Dims) -> OpWork:
        """Reads and writes the states of the convolution and of the rule once."""
        rule, taps = self.delta_work(dims), self.channels * self.taps
        kept = 2 * 4 * (taps - self.channels) * dims["seqs"]
        return OpWork(flops=rule.flops + 2 * taps * dims["tokens"], store_bytes=rule.store_bytes + kept)


@dataclass(frozen=True)
class DeltaNet(ConvDeltaHeads):
    """The convolution and the rule, of queries, keys and values that come apart.

    Attributes:
        num_heads, num_key_heads, key_dim, value_dim, tiled, per_channel, taps: see `ConvDeltaHeads`.
    """

    name = "delta_net"
    summary = "q, k, v = silu(conv(q, k, v)); S = g S + k (x) beta (v - g S^T k); S^T q"
    family = "attention"
    inputs = ("q", "k", "v", "a", "b", *FILTERS, *_NUMBERS, *_TABLES)
    optional = ("token",)
    outputs: ClassVar[tuple[str, ...]] = ("out", "token")
    accesses = dict.fromkeys((CONV_STATES, STATES), "readwrite")
    stages = SOURCE_STAGES

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From q, k, v, a, b [tokens, ...], filters [channels * taps], numbers of heads, the stores -> out, token."""
        require(not any(first for first, _ in self.columns.values()), "parts that come apart begin with column 0")
        for port, part in zip(FILTERS, "qkv", strict=True):
            self.check_filters(t, port, self.columns[part][1])
        require_states(t, CONV_STATES, (self.channels, self.taps - 1))
        self.check_heads(t, self.columns)
        return {"out": Tensor((t["v"].shape[0], self.width), t["v"].dtype), "token": TOKEN}

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """Whole heads of keys with the values that they serve: those are its units.

        Where such values lie apart, they do so on the rank, too: in as many tiles, of the rank's keys alone.
        """
        units = has["v"].columns
        if units is None:
            require_whole(has, *(port for port in has if port not in _TABLES))
            return Division(self, WHOLE)
        require(units.count == self.num_key_heads, f"a rank has {has['v']} of values, by {self.num_key_heads} keys")
        tiles = self.ratio if self.tiled else 1
        require(units.tiles == tiles, f"a rank has values in {units.tiles} tiles; expected {tiles}")
        for port in (*self.columns, *FILTERS, *_NUMBERS):
            axis = has[port].columns if port in self.columns else has[port].rows
            own = axis is not None and (axis.of, axis.count) == (units.of, units.count)
            require(own, f"a rank has {has[port]} at {port}, and {has['v']} of values")
        count = units.count_of(share)
        return Division(replace(self, num_heads=count * self.ratio, num_key_heads=count), has["v"])


@dataclass(frozen=True)
class DeltaDecode(ConvDeltaHeads):
    """All of it in a decode step, with the gated norm of each head: one token of each sequence.

    Attributes:
        num_heads, num_key_heads, key_dim, value_dim, tiled, per_channel, taps: see `ConvDeltaHeads`; queries, keys and
            values are neighbouring columns of `x`.
        eps, activation, gate_column: `eps`, `activation` and `first` of a `GatedNorm`.
        rank: the columns of a and of gate that `decay_b` and `gate_b` multiply; 0: there are none, and a and gate are
            the numbers of decays and of the gate.
    """

    name = "delta_decode"
    summary = "gated_norm(gated_delta(silu(conv(x)))), of one token of each sequence"
    family = "attention"
    inputs = ("x", "a", "b", "gate", "weight", *_NUMBERS, "norm", *_TABLES)
    optional = ("decay_b", "gate_b", "token")
    outputs: ClassVar[tuple[str, ...]] = ("out", "token")
    accesses = dict.fromkeys((CONV_STATES, STATES), "readwrite")
    stages = FUSED_STAGES

    eps: float = 1e-6
    activation: NormGate = "silu"
    gate_column: int = 0
    rank: int = 0

    @property
    def columns(self) -> dict[str, tuple[int, int]]:
        """See `DeltaHeads`."""
        return super().columns | ({"a": (self.decay_first, self.rank)} if self.rank else {})

    @property
    def multiplied(self) -> "DeltaDecode":
        """The same of decays and a gate that `decay_b` and `gate_b` have made, from column 0 on."""
        return replace(self, rank=0, decay_first=0, gate_column=0) if self.rank else self

    @property
    def gated_norm(self) -> GatedNorm:
        """The norm and the gate as an op of their own."""
        return GatedNorm(self.num_heads, self.eps, self.activation, False, self.gate_column)

    @property
    def head_products(self) -> dict[str, HeadProduct]:
        """The products of all heads' decays, and those of their gates, by the port of the matrix."""
        ports = ("decay_b", "gate_b") if self.rank else ()
        return dict.fromkeys(ports, HeadProduct(self.num_heads, self.rank, DType.F32))

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x, a, b, gate [seqs, ...], weight [channels * taps], norm [value_dim], heads' numbers -> out, token.

        With a rank, decay_b is [decays, rank], and gate_b [width, rank].
        """
        require_first("gate_column", self.gate_column)
        require_positive("eps", self.eps)
        require_choice("activation", self.activation, get_args(NormGate))
        firsts = (self.q_first, self.q_first + self.keys, self.q_first + 2 * self.keys)
        require((self.q_first, self.k_first, self.v_first) == firsts, "queries, keys and values are not neighbours")
        self.check_filters(t, "weight", self.channels)
        require_states(t, CONV_STATES, (self.channels, self.taps - 1))
        require_vector(t, "norm", self.value_dim)
        self.check_heads(dict(t) | {port: t["x"] for port in "qkv"}, self.columns)
        out = Tensor((t["x"].shape[0], self.width), t["x"].dtype)
        gates = Tensor((out.shape[0], self.width), DType.F32) if self.rank else t["gate"]
        self.multiplied.gated_norm.infer({"x": out, "gate": gates})
        self._check_products(t)
        return {"out": out, "token": TOKEN}

    def _check_products(self, t: Tensors) -> None:
        rows = {"decay_b": self.decays, "gate_b": self.width}
        require(not self.rank or self.per_channel, "a rank is that of decays by channels")
        require(self.rank >= 0, f"attribute rank is {self.rank}; expected 0 or more")
        for port, count in rows.items():
            require((port in t) == (self.rank > 0), f"{port} is bound where there is a rank")
            if port in t:
                shape = weight_matrix(t, port)
                require(shape == (count, self.rank), f"{port} is {list(shape)}; expected {[count, self.rank]}")
        if self.rank:
            width, end = matrix(t, "gate")[1], self.gate_column + self.rank
            require(width >= end, f"gate has {width} columns; expected {self.rank} from {self.gate_column} on")

    def work(self, use: Use, dims: Dims) -> OpWork:
        """That of the convolution and the rule, and two FLOPs for each token and element of a matrix."""
        own = super().work(use, dims)
        return replace(own, flops=own.flops + 2 * self.rank * (self.decays + self.width) * dims["tokens"])

"""A Mamba-2 layer between its projections: a convolution makes x, B and C, which a scan takes.

The source graph has its parts apart, as files and ranks have them; passes join them.
"""

from dataclasses import dataclass, replace

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import CONV_STATES, STATES
from mlxr.compiler.ir.checks import require, require_states, require_vector
from mlxr.compiler.ir.division import Holdings, require_whole
from mlxr.compiler.ir.op_kind import FUSED_STAGES, SOURCE_STAGES, Division
from mlxr.compiler.ir.ops.ssd import OF_HEADS, SsdHeads
from mlxr.compiler.ir.tensor import Tensor, Tensors
from mlxr.compiler.ir.work import Dims, OpWork, Use
from mlxr.compiler.spec.share import Share

PARTS = ("x", "b", "c")
"""The ports of what a convolution is made of, in the order of its channels."""
_FILTERS = tuple(f"{part}_conv" for part in PARTS)
_BIASES = tuple(f"{part}_conv_bias" for part in PARTS)


@dataclass(frozen=True)
class Mamba2Heads(SsdHeads):
    """The base of the kinds that convolve before the scan.

    Attributes:
        num_heads, head_dim, num_groups, state_dim, least, most, x_first, dt_first, gate_first: see `SsdHeads`.
        taps: tokens that the convolution reads, the newest included.
    """

    taps: int = 2

    @property
    def channels(self) -> int:
        """Channels of the convolution: x, B and C."""
        return self.width + 2 * self.shared_width

    def check_filters(self, t: Tensors, weight: str, bias: str, channels: int) -> None:
        """Raises RuleError unless a weight has the taps of these channels, and a bias a number of each."""
        require(self.taps > 1, f"attribute taps is {self.taps}; expected 2 or more")
        require_vector(t, weight, channels * self.taps)
        require_vector(t, bias, channels)
        for port in (weight, bias):
            require(port not in t or t[port].dtype is DType.F32, f"{port} is not f32")

    def work(self, use: Use, dims: Dims) -> OpWork:
        """Reads and writes the states of the convolution and of the scan once."""
        scan, taps = self.scan_work(dims), self.channels * self.taps
        kept = 2 * 4 * (taps - self.channels) * dims["seqs"]
        return OpWork(flops=scan.flops + 2 * taps * dims["tokens"], store_bytes=scan.store_bytes + kept)


class Mamba2(Mamba2Heads):
    """All of it, of x, B and C that come apart: x, B, C = silu(conv(x, B, C)), then the scan (`Ssd`)."""

    name = "mamba2"
    summary = "x, B, C = silu(conv(x, B, C)); S = exp(a dt) S + (dt x) B^T; (S C + d x) * silu(gate)"
    family = "attention"
    inputs = (*PARTS, "dt", *_FILTERS, *OF_HEADS, "query_start", "state_table", CONV_STATES, STATES)
    optional = (*_BIASES, "gate", "token")
    outputs = ("out", "token")
    accesses = dict.fromkeys((CONV_STATES, STATES), "readwrite")
    stages = SOURCE_STAGES

    @property
    def columns(self) -> dict[str, tuple[int, int]]:
        """By port of tokens: the first column that is read, and how many are."""
        shared = (0, self.shared_width)
        return {"x": (0, self.width), "b": shared, "c": shared, "dt": (0, self.num_heads), "gate": (0, self.width)}

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x, b, c, dt [tokens, ...], filters [channels * taps], numbers of heads, the stores -> out, token."""
        require(not (self.x_first or self.dt_first or self.gate_first), "parts that come apart begin with column 0")
        for part, weight, bias in zip(PARTS, _FILTERS, _BIASES, strict=True):
            self.check_filters(t, weight, bias, self.columns[part][1])
        require_states(t, CONV_STATES, (self.channels, self.taps - 1))
        return self.check(t)

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The rank's heads, with the groups that they read: parts of B and C, or all of the only one."""
        heads, groups = has["x"].columns, has["b"].columns
        if heads is None:
            require_whole(has, *has)
            return Division(self, has["x"])
        alike = [has[port].rows for port in OF_HEADS]
        require(
            all(axis is not None and (axis.of, axis.count) == (heads.of, heads.count) for axis in alike),
            "a rank has numbers of other heads than those of x",
        )
        first, last = heads.elements_of(share)
        own = replace(self, num_heads=(last - first) // self.head_dim)
        if groups is None:
            require(self.num_groups == 1, f"a rank has all of {self.num_groups} groups, and some heads")
            return Division(own, has["x"])
        require(
            (groups.of, groups.count) == (heads.of, heads.count), "a rank has groups of other heads than those of x"
        )
        first, last = groups.elements_of(share)
        return Division(replace(own, num_groups=(last - first) // self.state_dim), has["x"])


class ConvSsd(Mamba2Heads):
    """All of it, of neighbouring columns; for decode. The channels are x, B and C, one after the other."""

    name = "conv_ssd"
    summary = "x, B, C = silu(conv(x)); S = exp(a dt) S + (dt x) B^T; out = S C + d x, of each head"
    family = "attention"
    inputs = ("x", "weight", "dt", *OF_HEADS, "query_start", "state_table", CONV_STATES, STATES)
    optional = ("bias", "gate", "token")
    outputs = ("out", "token")
    accesses = dict.fromkeys((CONV_STATES, STATES), "readwrite")
    stages = FUSED_STAGES

    @property
    def columns(self) -> dict[str, tuple[int, int]]:
        """By port of tokens: the first column that is read, and how many are."""
        return {
            "x": (self.x_first, self.channels),
            "dt": (self.dt_first, self.num_heads),
            "gate": (self.gate_first, self.width),
        }

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x, dt [tokens, ...], weight [channels * taps] f32, the rest as of `Ssd`, the stores -> out, token."""
        self.check_filters(t, "weight", "bias", self.channels)
        require_states(t, CONV_STATES, (self.channels, self.taps - 1))
        return self.check(t)

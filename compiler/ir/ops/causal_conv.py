"""Short convolutions along a sequence, one filter for each channel; the last inputs are kept as a state."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import CONV_STATES
from mlxr.compiler.ir.checks import matrix, require, require_choice, require_first, require_states, require_vector
from mlxr.compiler.ir.division import Holdings, require_whole
from mlxr.compiler.ir.op_kind import FUSED_STAGES, Division, OpKind
from mlxr.compiler.ir.tensor import TOKEN, Tensor, Tensors
from mlxr.compiler.ir.work import Dims, OpWork, Use
from mlxr.compiler.spec.share import Share

ConvActivation = Literal["silu"]


class Convolution(OpKind):
    """What both kinds are: sum over j < taps of weight[c, j] x[t - taps + 1 + j, c], plus bias[c].

    The weight is a vector of all filters, the tap of the oldest token first. Before a sequence's first token there are
    zeros. A row of the store has the last taps - 1 inputs of each channel, the oldest first.
    """

    family = "attention"
    inputs: ClassVar[tuple[str, ...]] = ("x", "weight", "query_start", "state_table", CONV_STATES)
    optional = ("bias", "query_tiles", "token")
    outputs = ("out", "token")
    accesses = dict.fromkeys((CONV_STATES,), "readwrite")
    taps: int

    def channels_of(self, t: Tensors) -> int:
        """Channels, by the weight; raises RuleError where the weight, the bias or the store do not fit."""
        (size,) = t["weight"].shape if len(t["weight"].shape) == 1 else (0,)
        assert isinstance(size, int), "weights have no symbolic dims"
        require(self.taps > 1, f"attribute taps is {self.taps}; expected 2 or more")
        whole = size > 0 and size % self.taps == 0
        require(whole, f"weight is {t['weight']}; expected a vector of {self.taps} taps of each channel")
        channels = size // self.taps
        if "bias" in t:
            require_vector(t, "bias", channels)
        require_states(t, CONV_STATES, (channels, self.taps - 1))
        require(t["weight"].dtype is DType.F32, "states and weight are f32")
        return channels

    def work(self, use: Use, dims: Dims) -> OpWork:
        """Two steps for each tap; the state of each sequence is read and written once."""
        size = use.inputs["weight"].shape[0]
        assert isinstance(size, int), "weights have no symbolic dims"
        kept = size // self.taps * (self.taps - 1)
        return OpWork(flops=2 * size * dims["tokens"], store_bytes=2 * 4 * kept * dims["seqs"])


@dataclass(frozen=True)
class CausalConv(Convolution):
    """The convolution of some neighbouring columns of x, and an activation.

    Attributes:
        taps: tokens that it reads, the newest included.
        activation: of the result; None for none.
        first: the first of the columns.
    """

    name = "causal_conv"
    summary = "act(sum over j of weight[j] * x of j tokens before), of each channel"

    taps: int
    activation: ConvActivation | None = None
    first: int = 0

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, first + channels or more], weight [channels * taps] f32, the store -> out, token."""
        rows, width = matrix(t, "x")
        channels = self.channels_of(t)
        if self.activation is not None:
            require_choice("activation", self.activation, ("silu",))
        require_first("first", self.first)
        require(width >= self.first + channels, f"x has {width} columns; expected {channels} from {self.first} on")
        return {"out": Tensor((rows, channels), t["x"].dtype), "token": TOKEN}

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """Each channel by itself."""
        columns, filters = has["x"].columns, has["weight"].rows
        if columns is None:
            require_whole(has, *has)
            return Division(self, has["x"])
        require(self.first == 0, "a rank has parts of joined columns")
        own = filters is not None and (filters.of, filters.count) == (columns.of, columns.count)
        require(own, "a rank has filters of other channels than those of x")
        require("bias" not in has or has["bias"].rows == columns, "bias is of other channels than x")
        return Division(self, has["x"])


@dataclass(frozen=True)
class GatedConv(Convolution):
    """The convolution of b * x, times c: x has the columns of b, of c and of x, one after the other.

    Attributes:
        taps: as of `CausalConv`.
    """

    name = "gated_conv"
    summary = "c * conv(b * x)"
    stages = FUSED_STAGES

    taps: int

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, 3 * channels], weight [channels * taps] f32, the store -> out [tokens, channels], token."""
        rows, width = matrix(t, "x")
        channels = self.channels_of(t)
        require(width == 3 * channels, f"x has {width} columns; expected 3 times {channels}")
        return {"out": Tensor((rows, channels), t["x"].dtype), "token": TOKEN}

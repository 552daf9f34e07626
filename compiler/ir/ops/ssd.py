"""The scan of Mamba-2: each head keeps a matrix, which decays by a number of the token and takes in an outer product.

Source: Dao and Gu, "Transformers are SSMs" (2024): state space duality, in its form of a recurrence.
"""

from dataclasses import dataclass, replace

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.checks import (
    require,
    require_first,
    require_positive,
    require_vector,
)
from mlxr.compiler.ir.division import Axis, Holdings, require_whole, split
from mlxr.compiler.ir.op_kind import Division, OpKind
from mlxr.compiler.ir.tensor import TOKEN, Tensor, Tensors
from mlxr.compiler.ir.work import Dims, OpWork, Use
from mlxr.compiler.spec.share import Share

STATES = "states"
"""The store of what heads keep."""
_OF_HEADS = ("a", "d", "dt_bias")


@dataclass(frozen=True)
class Ssd(OpKind):
    """The scan of Mamba-2: S <- exp(a dt) S + (dt x) B^T; out = S C + d x, times silu(gate) if there is one.

    S is the state of a head, and dt is clamp(softplus(dt + dt_bias)).

    Attributes:
        num_heads, head_dim: heads of x and of the result, and their elements.
        num_groups: of heads; those of a group share B and C.
        state_dim: elements of B and of C; a head's state is [head_dim, state_dim].
        least, most: the limits of dt; `most` None: there is no upper one.
        x_first, b_first, c_first, dt_first, gate_first: the column with which each begins in its input.
    """

    name = "ssd"
    summary = "S = exp(a dt) S + (dt x) B^T; out = S C + d x, of each head"
    family = "attention"
    inputs = ("x", "b", "c", "dt", "a", "d", "dt_bias", "query_start", "state_table", STATES)
    optional = ("gate", "token")
    outputs = ("out", "token")
    accesses = dict.fromkeys((STATES,), "readwrite")

    num_heads: int
    head_dim: int
    num_groups: int
    state_dim: int
    least: float
    most: float | None
    x_first: int = 0
    b_first: int = 0
    c_first: int = 0
    dt_first: int = 0
    gate_first: int = 0

    @property
    def width(self) -> int:
        """Columns of the result."""
        return self.num_heads * self.head_dim

    @property
    def columns(self) -> dict[str, tuple[int, int]]:
        """By port of tokens: the first column that is read, and how many are."""
        shared = self.num_groups * self.state_dim
        return {
            "x": (self.x_first, self.width),
            "b": (self.b_first, shared),
            "c": (self.c_first, shared),
            "dt": (self.dt_first, self.num_heads),
            "gate": (self.gate_first, self.width),
        }

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x, b, c, dt [tokens, ...], a, d, dt_bias [heads] f32, the store [slots, layers, ...] -> out, token."""
        for name in ("num_heads", "head_dim", "num_groups", "state_dim", "most"):
            require_positive(name, getattr(self, name))
        require(self.num_heads % self.num_groups == 0, f"{self.num_heads} heads are not {self.num_groups} equal groups")
        require(self.least >= 0, f"attribute least is {self.least}; expected 0 or more")
        for port, (first, count) in self.columns.items():
            if port in t:
                self.check_columns(t, port, first, count)
        self.check_heads(t)
        return {"out": Tensor((t["x"].shape[0], self.width), t["x"].dtype), "token": TOKEN}

    def check_columns(self, t: Tensors, port: str, first: int, count: int) -> None:
        """Raises RuleError unless a port has the rows of x, and these columns."""
        require_first(f"{port}_first", first)
        shape = t[port].shape
        rows = t["x"].shape[0]
        require(len(shape) == 2 and shape[0] == rows, f"{port} is {list(shape)}; expected [{rows}, columns]")
        width = shape[1]
        assert isinstance(width, int), "only rows have symbolic dims"
        require(width >= first + count, f"{port} has {width} columns; expected {count} from {first} on")

    def check_heads(self, t: Tensors) -> None:
        """Raises RuleError unless each head has its numbers and its state."""
        for port in _OF_HEADS:
            require_vector(t, port, self.num_heads)
            require(t[port].dtype is DType.F32, f"{port} is {t[port].dtype}; expected f32")
        row, states = (self.num_heads, self.head_dim, self.state_dim), t[STATES]
        require(states.shape[2:] == row, f"states are {list(states.shape)}; expected rows of {list(row)}")
        require(states.dtype is DType.F32, f"states are {states.dtype}; expected f32")

    def work(self, use: Use, dims: Dims) -> OpWork:
        """Reads and writes the state of each sequence once; two products and a decay for each element and token."""
        elements = self.width * self.state_dim
        return OpWork(flops=5 * elements * dims["tokens"], store_bytes=2 * 4 * elements * dims["seqs"])

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The rank's heads, and the groups that they read."""
        heads, groups = has["x"].columns, has["b"].columns
        if heads is None:
            require_whole(has, "x", "b", "c", "dt", "gate", *_OF_HEADS)
            return Division(self, has["x"])
        require(not any(first for first, _ in self.columns.values()), "a rank has parts of joined columns")
        require(groups is not None and has["c"].columns == groups, "a rank has other groups of B than of C")
        assert groups is not None
        mine = [axis for port in _OF_HEADS if (axis := has[port].rows) is None or axis.count != heads.count]
        require(not mine, "a rank has numbers of other heads than those of x")
        own = replace(self, num_heads=heads.count_of(share), num_groups=groups.count_of(share))
        return Division(own, split(Axis("heads", self.num_heads, self.head_dim)))

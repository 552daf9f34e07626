"""The scan of Mamba-2: each head keeps a matrix, which decays by a number of the token and takes in an outer product.

Source: Dao and Gu, "Transformers are SSMs" (2024): state space duality, in its form of a recurrence.
"""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import STATES
from mlxr.compiler.ir.checks import (
    matrix,
    require,
    require_first,
    require_integers,
    require_positive,
    require_states,
    require_vector,
)
from mlxr.compiler.ir.op_kind import FUSED_STAGES, OpKind
from mlxr.compiler.ir.tensor import TOKEN, Tensor, Tensors
from mlxr.compiler.ir.work import Dims, OpWork, Use

OF_HEADS = ("a", "d", "dt_bias")
"""The ports of what is the same for all tokens, a number of each head."""


@dataclass(frozen=True)
class SsdHeads(OpKind):
    """The base of the scans of Mamba-2: the heads, and where a token's numbers are.

    Attributes:
        num_heads, head_dim: heads of x and of the result, and their elements.
        num_groups: of heads; those of a group share B and C.
        state_dim: elements of B and of C; a head's state is [head_dim, state_dim].
        least, most: the limits of dt; `most` None: there is no upper one.
        x_first, dt_first, gate_first: the column with which each begins in its input.
    """

    num_heads: int
    head_dim: int
    num_groups: int
    state_dim: int
    least: float
    most: float | None
    x_first: int = 0
    dt_first: int = 0
    gate_first: int = 0

    @property
    def width(self) -> int:
        """Columns of the result."""
        return self.num_heads * self.head_dim

    @property
    def shared_width(self) -> int:
        """Columns of B, and as many of C."""
        return self.num_groups * self.state_dim

    @property
    def columns(self) -> dict[str, tuple[int, int]]:
        """By port of tokens: the first column that is read, and how many are."""
        raise NotImplementedError(f"{type(self).__name__} does not say its columns")

    def check(self, t: Tensors) -> dict[str, Tensor]:
        """The outputs; raises RuleError unless the inputs fit each other and the attributes."""
        for name in ("num_heads", "head_dim", "num_groups", "state_dim", "most"):
            require_positive(name, getattr(self, name))
        require(self.num_heads % self.num_groups == 0, f"{self.num_heads} heads are not {self.num_groups} equal groups")
        require(self.least >= 0, f"attribute least is {self.least}; expected 0 or more")
        rows = t["x"].shape[0]
        for port, (first, count) in self.columns.items():
            if port in t:
                require_first(f"{port}_first", first)
                given, width = matrix(t, port)
                require(given == rows, f"{port} has {given} rows, and x {rows}")
                require(width >= first + count, f"{port} has {width} columns; expected {count} from {first} on")
        for port in OF_HEADS:
            require_vector(t, port, self.num_heads)
            require(t[port].dtype is DType.F32, f"{port} is {t[port].dtype}; expected f32")
        require_integers(t, "query_start")
        require_integers(t, "state_table")
        require_states(t, STATES, (self.num_heads, self.head_dim, self.state_dim))
        return {"out": Tensor((rows, self.width), t["x"].dtype), "token": TOKEN}

    def scan_work(self, dims: Dims) -> OpWork:
        """Reads and writes the state of each sequence once; two products and a decay for each element and token."""
        elements = self.width * self.state_dim
        return OpWork(flops=5 * elements * dims["tokens"], store_bytes=2 * 4 * elements * dims["seqs"])


@dataclass(frozen=True)
class Ssd(SsdHeads):
    """The scan of Mamba-2: S <- exp(a dt) S + (dt x) B^T; out = S C + d x, times silu(gate) if there is one.

    S is the state of a head, and dt is clamp(softplus(dt + dt_bias)).

    Attributes:
        num_heads, head_dim, num_groups, state_dim, least, most, x_first, dt_first, gate_first: see `SsdHeads`.
        b_first, c_first: the columns with which B and C begin in their inputs.
    """

    name = "ssd"
    summary = "S = exp(a dt) S + (dt x) B^T; out = S C + d x, of each head"
    family = "attention"
    inputs = ("x", "b", "c", "dt", "a", "d", "dt_bias", "query_start", "state_table", STATES)
    optional = ("gate", "token")
    outputs = ("out", "token")
    accesses = dict.fromkeys((STATES,), "readwrite")
    stages = FUSED_STAGES

    b_first: int = 0
    c_first: int = 0

    @property
    def columns(self) -> dict[str, tuple[int, int]]:
        """By port of tokens: the first column that is read, and how many are."""
        return {
            "x": (self.x_first, self.width),
            "b": (self.b_first, self.shared_width),
            "c": (self.c_first, self.shared_width),
            "dt": (self.dt_first, self.num_heads),
            "gate": (self.gate_first, self.width),
        }

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x, b, c, dt [tokens, ...], a, d, dt_bias [heads] f32, the store [slots, layers, ...] -> out, token."""
        return self.check(t)

    def work(self, use: Use, dims: Dims) -> OpWork:
        """Reads and writes states, and nothing else of its own."""
        return self.scan_work(dims)

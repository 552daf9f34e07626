"""Rows that are kept for the head that guesses further tokens, and what that head makes of them.

A model's own head reads rows after the final norm; what a head of other files reads is one more projection.

Row p of a sequence is the one after its token p. Where the head has guessed token p, the row is the head's own, until
the model computes that token.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from mlxr.compiler.formats.stores import HIDDEN
from mlxr.compiler.ir.checks import matrix, require, require_integers, require_positive, require_vector
from mlxr.compiler.ir.division import WHOLE, Holdings, require_whole
from mlxr.compiler.ir.op_kind import Division, NormKind, OpKind
from mlxr.compiler.ir.tensor import TOKEN, Tensor, Tensors
from mlxr.compiler.ir.work import NOT_COUNTED, Dims, OpWork, Use
from mlxr.compiler.spec.share import Share


@dataclass(frozen=True)
class HiddenOp(OpKind):
    """The base of these kinds.

    Attributes:
        kind, eps: see `Norm`; without a kind, rows are kept as they are.
    """

    kind: NormKind | None
    eps: float

    def check(self, t: Tensors, *norms: str) -> int:
        """Columns of x; raises RuleError unless the store and the norms fit them."""
        _, width = matrix(t, "x")
        row = math.prod(size for size in t[HIDDEN].shape[3:] if isinstance(size, int))
        require(row == width, f"{HIDDEN} has rows of {row}, x has {width} columns")
        require_positive("eps", self.eps)
        for port in norms:
            require_vector(t, port, width)
            require(self.kind is not None or port not in t, f"rows that are kept as they are have no {port}")
        return width

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The same at every rank."""
        require_whole(has, *has)
        return Division(self, WHOLE)

    def row_bytes(self, use: Use) -> int:
        """Bytes of a row."""
        return int(use.inputs["x"].shape[1]) * use.inputs[HIDDEN].dtype.size_bytes


class HiddenWrite(HiddenOp):
    """Keeps the norm of each row, or the row itself."""

    name = "hidden_write"
    summary = "norm(x) or x into its slot of the arena"
    family = "cache"
    inputs = ("x", "slots", HIDDEN)
    optional = ("weight", "bias", "token")
    outputs = ("token",)
    accesses: ClassVar = dict.fromkeys((HIDDEN,), "write")

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, hidden], slots [tokens] i32, weight and bias [hidden], the arena -> token."""
        self.check(t, "weight", "bias")
        require_integers(t, "slots")
        return {"token": TOKEN}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """Writes the row of each token."""
        return OpWork(flops=NOT_COUNTED, store_bytes=dims["tokens"] * self.row_bytes(use))


class GuessWrite(HiddenOp):
    """Keeps some rows, or their norms, as those of the tokens that come next: these are guessed."""

    name = "guess_write"
    summary = "norm(x[rows]) or x[rows] into the slots that follow"
    family = "cache"
    inputs = ("x", "rows", "positions", "query_start", "block_tables", HIDDEN)
    optional = ("weight", "bias", "token")
    outputs = ("token",)
    accesses: ClassVar = dict.fromkeys((HIDDEN,), "write")

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, hidden], rows, of last tokens, batch tables, weight and bias [hidden], the arena -> token."""
        self.check(t, "weight", "bias")
        for port in ("rows", "positions", "query_start", "block_tables"):
            require_integers(t, port)
        return {"token": TOKEN}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """Writes a row of each sequence."""
        return OpWork(flops=NOT_COUNTED, rows={"x": dims["seqs"]}, store_bytes=dims["seqs"] * self.row_bytes(use))


@dataclass(frozen=True)
class GuessInput(HiddenOp):
    """What the head projects of each token: its embedding and the row before it, each normalised.

    Attributes:
        hidden_first: whether the row comes first.
        gives: whether it also gives the row alone, as it is (`raw`) or `normed`; None: it does not.
    """

    name = "guess_input"
    summary = "[norm(x) | norm(kept row)]"
    family = "cache"
    inputs = ("x", "slots", HIDDEN)
    optional = ("weight", "bias", "hidden_weight", "hidden_bias", "token")
    outputs = ("out", "token")
    optional_outputs = ("row",)
    accesses: ClassVar = dict.fromkeys((HIDDEN,), "read")

    hidden_first: bool
    gives: Literal["raw", "normed"] | None = None

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, hidden], slots [tokens] i32, four vectors, arena -> out [tokens, 2 * hidden], row like x."""
        width = self.check(t, *self.optional[:-1])
        require_integers(t, "slots")
        require(("bias" in t) == ("hidden_bias" in t), "both norms have a bias or none")
        require(("weight" in t) == ("hidden_weight" in t), "both norms have a weight or none")
        require(self.kind is not None, "what is projected is normalised")
        row = {} if self.gives is None else {"row": t["x"]}
        return {"out": Tensor((t["x"].shape[0], 2 * width), t["x"].dtype), "token": TOKEN, **row}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """Reads the row of each token."""
        return OpWork(flops=NOT_COUNTED, store_bytes=dims["tokens"] * self.row_bytes(use))

"""A toy: an op with a store of its own, of scope `sequence`."""

import math
from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.checks import require
from mlxr.compiler.ir.division import Holdings
from mlxr.compiler.ir.op_kind import Division, OpKind
from mlxr.compiler.ir.tensor import TOKEN, Tensor, Tensors
from mlxr.compiler.ir.work import Dims, OpWork, Use
from mlxr.compiler.spec.share import Share


@dataclass(frozen=True)
class DecayedSum(OpKind):
    """x and the sum of a sequence's x so far, which decays with each token: out = x + s, s = x + decay * s.

    Attributes:
        decay: what is left of the sum after a token.
    """

    name = "decayed_sum"
    summary = "x + s, where s = x + decay * s"
    family = "elementwise"
    inputs = ("x", "query_start", "state_table", "sums")
    optional = ("token",)
    outputs = ("out", "token")
    accesses = dict.fromkeys(("sums",), "readwrite")

    decay: float

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, width], query_start, state_table, sums [slots, layers, ...] f32 -> out like x, token."""
        width, row = t["x"].shape[1], [size for size in t["sums"].shape[2:] if isinstance(size, int)]
        require(math.prod(row) == width, f"sums are {t['sums']}, expected rows of {width}")
        require(t["sums"].dtype is DType.F32, f"sums are {t['sums']}, expected f32")
        return {"out": t["x"], "token": TOKEN}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """Reads and writes the state of each sequence once; three operations for each element."""
        width = use.inputs["x"].shape[1]
        assert isinstance(width, int), "only rows are symbolic"
        return OpWork(flops=3 * dims["tokens"] * width, store_bytes=2 * 4 * dims["seqs"] * width)

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """Each column by itself: a rank keeps the sums of those that it has."""
        return Division(self, has["x"])

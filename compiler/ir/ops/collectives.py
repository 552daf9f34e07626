"""Ops in which several ranks take part: every rank of a group issues them in the same order."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.checks import RuleError, matrix, require, require_positive
from mlxr.compiler.ir.division import Holdings
from mlxr.compiler.ir.op_kind import Division, OpKind
from mlxr.compiler.ir.tensor import Tensor, Tensors
from mlxr.compiler.ir.work import NOT_COUNTED, Dims, OpWork, Use
from mlxr.compiler.spec.share import Share

CollectiveKind = Literal["all_sum", "send", "receive", "gather"]
"""`all_sum`: the sum over the ranks of a stage; `send`, `receive`: rows from one stage to the next; `gather`: the
step's result, from the ranks of the last stage to rank 0."""


class Collective(OpKind):
    """An op in which several ranks take part.

    Attributes:
        exchange: what they exchange.
    """

    family = "collective"
    exchange: ClassVar[CollectiveKind]

    def work(self, use: Use, dims: Dims) -> OpWork:
        """Its time is that of its messages, which `mlxr.inspect.split` predicts."""
        return OpWork(flops=NOT_COUNTED)

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """Refuses: collectives are what division adds."""
        raise RuleError("the graph is that of a rank already")


class _OfRows(Collective):
    """A collective whose result is like its input."""

    inputs = ("x",)

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, width] -> out like x."""
        matrix(t, "x")
        return {"out": t["x"]}


class AllSum(_OfRows):
    """The sum of what each rank of a stage has."""

    name = "all_sum"
    summary = "the sum of x over the ranks of the stage"
    exchange = "all_sum"


class Send(_OfRows):
    """Rows for the next stage."""

    name = "send"
    summary = "x, to the next stage; after: what it sends before, of several values"
    exchange = "send"
    optional = ("after",)


@dataclass(frozen=True)
class Receive(Collective):
    """Rows from the stage before.

    Attributes:
        width: their columns.
        dtype: their type.
    """

    name = "receive"
    summary = "rows of the stage before"
    exchange = "receive"
    inputs = ("token_ids",)

    width: int
    dtype: DType

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From token_ids [tokens], for their number -> out [tokens, width]."""
        require_positive("width", self.width)
        return {"out": Tensor((t["token_ids"].shape[0], self.width), self.dtype)}


@dataclass(frozen=True)
class GatherResult(Collective):
    """The result of a step, from the ranks of the last stage to rank 0; on other ranks it is not to be read.

    Attributes:
        width: columns of the result.
    """

    name = "gather_result"
    summary = "columns of the ranks of the last stage, at rank 0; after: what precedes it on a rank without any"
    exchange = "gather"
    inputs = ("rows",)
    optional = ("x", "after")

    width: int

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From rows [rows], for their number, and x [rows, columns of this rank] -> out [rows, width] f32."""
        rows = t["rows"].shape[0]
        require_positive("width", self.width)
        if "x" in t:
            of, columns = matrix(t, "x")
            require(of == rows, f"x has {of} rows; expected {rows}")
            require(columns <= self.width, f"x has {columns} columns of {self.width}")
            require(t["x"].dtype is DType.F32, f"x is {t['x'].dtype}; expected f32")
        return {"out": Tensor((rows, self.width), DType.F32)}

"""The embedding, and other ops that choose or weight whole rows."""

from dataclasses import dataclass, replace
from fractions import Fraction

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.checks import (
    matrix,
    require,
    require_first,
    require_integers,
    require_positive,
    require_residual,
    weight_matrix,
)
from mlxr.compiler.ir.division import PARTIAL, WHOLE, Holdings, require_whole
from mlxr.compiler.ir.op_kind import SOURCE_STAGES, Division, OpKind
from mlxr.compiler.ir.tensor import Tensor, Tensors
from mlxr.compiler.ir.work import NOT_COUNTED, Dims, OpWork, Use
from mlxr.compiler.spec.share import Share


@dataclass(frozen=True)
class Embed(OpKind):
    """Rows of the embedding table, or of another one, which may be added to a residual.

    Attributes:
        dtype: the type of its result.
        scale: factor of the rows.
        first_row: of a rank that has a part of the vocabulary, the id of the table's first row; ids of other ranks'
            rows give zeros, so that the sum over the ranks is the embedding. None: the table has all rows.
    """

    name = "embed"
    summary = "scale * table[ids], or residual + scale * table[ids]"
    family = "gather"
    inputs = ("ids", "table")
    optional = ("residual",)

    dtype: DType
    scale: float
    first_row: int | None = None

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From ids [tokens] i32, table [vocab, hidden], residual like out -> out [tokens, hidden]."""
        require_integers(t, "ids")
        _, hidden = matrix(t, "table")
        require_positive("scale", self.scale)
        require_first("first_row", self.first_row)
        out = Tensor((t["ids"].shape[0], hidden), self.dtype)
        require_residual(t, out)
        return {"out": out}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """One step for each element. Each token reads its row, which others may have read, too."""
        return OpWork(flops=NOT_COUNTED, weight_tokens=Fraction(dims["tokens"]))

    def weights_per_token(self, use: Use) -> Fraction:
        """A row of the table."""
        return Fraction(1, weight_matrix(use.inputs, "table")[0])

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """Rows of the rank's ids, and zeros for others: a partial sum."""
        rows = has["table"].rows
        require(has["table"].columns is None, "a rank has some columns of the table")
        if rows is None:
            require_whole(has, *has)
            return Division(self, WHOLE)
        require("residual" not in has, "a rank has some rows of a table that is added to a residual")
        return Division(replace(self, first_row=rows.elements_of(share)[0]), PARTIAL)


class GatherRows(OpKind):
    """A choice of rows."""

    name = "gather_rows"
    summary = "x[rows]"
    family = "gather"
    inputs = ("x", "rows")
    linear = ("x",)

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, width], rows [rows] -> out [rows, width]."""
        _, width = matrix(t, "x")
        return {"out": Tensor((t["rows"].shape[0], width), t["x"].dtype)}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """It reads the rows that it chooses."""
        return OpWork(flops=NOT_COUNTED, rows={"x": dims["rows"]})

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The same rows of what the rank has."""
        return Division(self, has["x"])


class GateRows(OpKind):
    """A product of each row with the sigmoid of its gate."""

    name = "gate_rows"
    summary = "x * sigmoid(gate)"
    family = "elementwise"
    inputs = ("x", "gate")
    linear = ("x",)
    stages = SOURCE_STAGES

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, width], gate [tokens, 1] -> out like x."""
        rows, _ = matrix(t, "x")
        require(t["gate"].shape == (rows, 1), f"gate is {list(t['gate'].shape)}; expected {[rows, 1]}")
        return {"out": t["x"]}

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The same of what the rank has."""
        require_whole(has, "gate")
        return Division(self, has["x"])

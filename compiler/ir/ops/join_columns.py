"""Rows of several values, side by side."""

from typing import ClassVar

from mlxr.compiler.ir.checks import matrix, require
from mlxr.compiler.ir.division import WHOLE, Holdings, require_whole
from mlxr.compiler.ir.op_kind import Division, OpKind
from mlxr.compiler.ir.tensor import Tensor, Tensors
from mlxr.compiler.ir.work import NOT_COUNTED, Dims, OpWork, Use
from mlxr.compiler.spec.share import Share


class JoinColumns(OpKind):
    """Three values, whose rows become one."""

    name = "join_columns"
    summary = "[x | y | z]"
    family = "gather"
    inputs: ClassVar[tuple[str, ...]] = ("x", "y", "z")

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x, y and z [tokens, width] alike -> out [tokens, 3 * width]."""
        rows, width = matrix(t, "x")
        require(t["x"] == t["y"] == t["z"], f"x is {t['x']}, y is {t['y']}, z is {t['z']}; expected the same")
        return {"out": Tensor((rows, len(self.inputs) * width), t["x"].dtype)}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """A copy."""
        return OpWork(flops=NOT_COUNTED)

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The same at every rank."""
        require_whole(has, *has)
        return Division(self, WHOLE)

"""A toy: an elementwise op that no pass fuses into others."""

from dataclasses import dataclass

from mlxr.compiler.ir.op_kind import EVERY_STAGE
from mlxr.compiler.ir.ops.elementwise import Elementwise
from mlxr.compiler.ir.work import NOT_COUNTED, Dims, OpWork, Use


@dataclass(frozen=True)
class Stretch(Elementwise):
    """A product with a number, computed by a kernel of its own.

    Attributes:
        factor: the number.
    """

    name = "stretch"
    summary = "factor * x"
    stages = EVERY_STAGE

    factor: float

    def work(self, use: Use, dims: Dims) -> OpWork:
        """One step for each element."""
        return OpWork(flops=NOT_COUNTED)

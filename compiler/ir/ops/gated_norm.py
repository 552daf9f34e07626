"""The norm of a recurrent layer's result, and its gate."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from mlxr.compiler.ir.checks import matrix, require, require_choice, require_first, require_positive
from mlxr.compiler.ir.division import WHOLE, Holdings, require_whole
from mlxr.compiler.ir.op_kind import Division, OpKind
from mlxr.compiler.ir.tensor import Tensor, Tensors
from mlxr.compiler.ir.work import NOT_COUNTED, Dims, OpWork, Use
from mlxr.compiler.spec.share import Share

NormGate = Literal["silu", "sigmoid"]


@dataclass(frozen=True)
class GatedNorm(OpKind):
    """The norm of the root mean square of each of several groups of columns, and a gate of each element.

    Attributes:
        groups: number of equal groups of a row's columns: heads, or groups of them.
        eps: added to the mean square; None: there is no norm, only the gate.
        activation: the function of the gate.
        gate_first: whether the gate multiplies x before the norm, and not its result.
        first: the column of the gate's value in which the gate begins.
    """

    name = "gated_norm"
    summary = "x / rms(x), of each group of columns, * weight * act(gate); or the same of x * act(gate)"
    family = "norm"
    inputs = ("x", "gate")
    optional = ("weight",)

    groups: int
    eps: float | None
    activation: NormGate
    gate_first: bool
    first: int

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, width], gate [tokens, first + width or more], weight [width / groups] or [width] -> out."""
        rows, width = matrix(t, "x")
        of_gate, columns = matrix(t, "gate")
        require_positive("eps", self.eps)
        require_choice("activation", self.activation, get_args(NormGate))
        require_first("first", self.first)
        require(self.groups >= 1 and width % self.groups == 0, f"x has {width} columns; expected {self.groups} groups")
        require(of_gate == rows, f"gate has {of_gate} rows, and x {rows}")
        require(columns >= self.first + width, f"gate has {columns} columns; expected {width} from {self.first} on")
        require(self.eps is not None or "weight" not in t, "a weight is bound, but there is no norm")
        if "weight" in t:
            shape, expected = t["weight"].shape, ((width // self.groups,), (width,))
            message = " or ".join(dict.fromkeys(str(list(choice)) for choice in expected))
            require(shape in expected, f"weight is {list(shape)}; expected {message}")
        return {"out": t["x"]}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """A few steps for each element."""
        return OpWork(flops=NOT_COUNTED)

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """Each group by itself: a rank has whole groups."""
        columns, gated = has["x"].columns, has["gate"].columns
        if columns is None:
            require_whole(has, *has)
            return Division(self, WHOLE)
        require(gated is not None and gated.of == columns.of, "a rank has gates of other heads than x")
        first, last = columns.elements_of(share)
        size = columns.count * columns.size * columns.tiles // self.groups
        require(first % size == last % size == 0, f"a rank has columns {first} to {last}, not whole groups of {size}")
        require("weight" not in has or has["weight"].rows in (None, columns), "weight is of other columns than x")
        return Division(replace(self, groups=(last - first) // size * columns.tiles), has["x"])

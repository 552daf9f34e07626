"""Collectives: the program exchanges rows with the other ranks; templates/cpu/links.h says how."""

from collections.abc import Sequence
from dataclasses import dataclass

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.collectives import AllSum, Collective, CollectiveKind, GatherResult, Receive, Send
from mlxr.compiler.targets.cpu.kernel_parts.kernel import LINKS, CpuHelper, CpuKernel, Param
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers


@dataclass(frozen=True)
class CpuCollective(CpuKernel):
    """One exchange of f32 rows with other ranks.

    Attributes:
        kind: what is exchanged.
        columns: columns of x; of a `receive`, those of out; 0 if a rank takes part in a `gather` without any.
        width: columns of out.
        follows: whether it has no x, but comes after something that the rank does.
        keeps: whether it is a sum after another, whose addend other ranks may still be reading. That is kept until
            this sum: ranks that have come to it have read the addend. The last sum's is kept to the end of the step.
    """

    template = "collective.jinja"
    kind: CollectiveKind
    columns: int
    width: int
    follows: bool = False
    keeps: bool = False

    @property
    def helpers(self) -> tuple[CpuHelper, ...]:
        """How ranks exchange rows."""
        return (LINKS,)

    @property
    def dim(self) -> str:
        """What the rows are, in the batch."""
        return "rows" if self.kind == "gather" else "tokens"

    @property
    def reads(self) -> bool:
        """Whether it has an x."""
        return self.kind != "receive" and self.columns > 0

    @property
    def writes(self) -> bool:
        """Whether the runtime writes to out."""
        return self.kind != "send"

    @property
    def params(self) -> tuple[Param, ...]:
        """x, if there is one, and out. Nobody writes a send's out, and nobody reads `after` and `before`."""
        bound = (("x", self.reads), ("after", self.follows), ("before", self.keeps))
        names = [name for name, is_bound in bound if is_bound]
        return (*(Param(name, "input") for name in names), Param("out", "output"))

    @property
    def formula(self) -> str:
        """What it does, for the head of the function."""
        return {
            "all_sum": "out = the sum of x over the ranks of the stage",
            "send": "x, to the next stage",
            "receive": "out = rows of the stage before",
            "gather": "out = the columns x of all ranks of the last stage, at rank 0",
        }[self.kind]

    @property
    def buffers(self) -> tuple[tuple[str, str], ...]:
        """Names and shapes, for the head of the function."""
        x = (("x", f"[{self.dim}, {self.columns}] f32"),) if self.reads else ()
        return (*x, ("out", f"[{self.dim}, {self.width}] f32")) if self.writes else x


@lowers(AllSum, Send, Receive, GatherResult)
def lower_collective(lowering: CpuLowering, op: Op, attrs: Collective) -> None:
    """Adds the call for an op."""
    kind, width = attrs.exchange, lowering.graph.value(op.out).shape[1]
    assert isinstance(width, int), "only rows have symbolic dims"
    columns = lowering.width(op, "x") if "x" in op.inputs else width if kind == "receive" else 0
    ops = list(lowering.graph.ops)
    before = latest_addend(ops[: ops.index(op)]) if isinstance(attrs, AllSum) else None
    kernel = CpuCollective(kind, kind, columns, width, "after" in op.inputs, before is not None)
    lowering.add_call(op, kernel, {"before": before} if before is not None else None)


def latest_addend(ops: Sequence[Op]) -> str | None:
    """What the last sum of some ops adds; None: there is no sum."""
    return next((op.inputs["x"] for op in reversed(ops) if isinstance(op.attrs, AllSum)), None)

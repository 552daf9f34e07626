"""Rows that are kept for the head that guesses, and what that head makes of them."""

from dataclasses import dataclass
from typing import Literal

from mlxr.compiler.formats.arena import Mode
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import NormKind
from mlxr.compiler.ir.ops.hidden import GuessInput, GuessWrite, HiddenOp, HiddenWrite
from mlxr.compiler.schedule.kernel import round_up
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel, Param
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers


@dataclass(frozen=True)
class CpuHidden(CpuKernel):
    """Writes rows or their norms to the arena, or reads them, normalises them, and puts them beside embeddings' norms.

    Attributes:
        does: `keep`: the rows of tokens; `guess`: those of last tokens, as those of the next; `read`.
        store, group: the numbers of the allocation and of its group.
        width: columns of a row.
        kind, eps: see `Norm`; without a kind, rows are kept as they are.
        weight, bias: whether norms have them.
        hidden_first: whether what is read comes before the embedding.
        gives: see `GuessInput`.
        cache: the element type of the store.
        mode, block_size: see `ArenaGeometry`; the store has one layer.
    """

    template = "hidden.jinja"
    does: Literal["keep", "guess", "read"]
    store: int
    group: int
    width: int
    kind: NormKind | None
    eps: float
    weight: bool
    bias: bool
    hidden_first: bool
    gives: Literal["raw", "normed"] | None
    cache: DType
    mode: Mode
    block_size: int

    @property
    def params(self) -> tuple[Param, ...]:
        """x, the vectors of the norms, and the results."""
        names = [name for name, has in (("weight", self.weight), ("bias", self.bias)) if has]
        if self.does == "read":
            names += [f"hidden_{name}" for name in names]
        out = (Param("out", "output"),) if self.does == "read" else ()
        row = () if self.gives is None else (Param("row", "output"),)
        return (Param("x", "input"), *(Param(name, "vector") for name in names), *out, *row)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the store: slots are in order, since it has one layer."""
        return self.width * self.cache.size_bytes

    @property
    def padded(self) -> int:
        """Elements of a row on the stack, in whole vectors."""
        return round_up(self.width, 16)


@lowers(HiddenWrite, GuessWrite, GuessInput)
def lower_hidden(lowering: CpuLowering, op: Op, attrs: HiddenOp) -> None:
    """Adds the call of an op."""
    does = {HiddenWrite: "keep", GuessWrite: "guess", GuessInput: "read"}[type(attrs)]
    (store,) = lowering.stores_of(op)
    arena = lowering.arena
    kernel = CpuHidden(
        label=op.kind,
        does=does,  # type: ignore[arg-type]
        store=store,
        group=lowering.group_of(op),
        width=lowering.width(op, "x"),
        kind=attrs.kind,
        eps=attrs.eps,
        weight="weight" in op.inputs,
        bias="bias" in op.inputs,
        hidden_first=isinstance(attrs, GuessInput) and attrs.hidden_first,
        gives=attrs.gives if isinstance(attrs, GuessInput) else None,
        cache=arena.allocations[store].dtype,
        mode=arena.mode,
        block_size=arena.block_size,
    )
    lowering.add_call(op, kernel)

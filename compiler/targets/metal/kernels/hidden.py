"""Rows that are kept for the head that guesses, and what that head makes of them."""

from dataclasses import dataclass
from typing import Literal

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.arena import Mode
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import HIDDEN
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import NormKind
from mlxr.compiler.ir.ops.hidden import GuessInput, GuessWrite, HiddenOp, HiddenWrite
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.row_kernel import RowKernel
from mlxr.compiler.targets.metal.kernel_parts.row_sums import QUAD, sums_bytes
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers, num_columns


@dataclass(frozen=True)
class HiddenKernel(RowKernel):
    """Writes rows or their norms to the arena, or reads them, normalises them, and puts them beside embeddings' norms.

    Attributes:
        does: `keep`: the rows of tokens; `guess`: those of last tokens, as those of the next; `read`.
        width: columns of a row.
        kind, eps: see `Norm`; without a kind, rows are kept as they are.
        weight, bias: element types of the norms' vectors; None: there are none.
        hidden_first: whether what is read comes before the embedding.
        gives: see `GuessInput`.
        activation, cache: element types of x and of the store, whose slots are in order: it has one layer.
        mode, block_size: see `ArenaGeometry`.
        one_each: whether each sequence has one token, whose row the batch asks for.
    """

    template = "hidden.metal.jinja"
    does: Literal["keep", "guess", "read"]
    width: int
    kind: NormKind | None
    eps: float
    weight: DType | None
    bias: DType | None
    hidden_first: bool
    gives: Literal["raw", "normed"] | None
    activation: DType
    cache: DType
    mode: Mode
    block_size: int
    one_each: bool

    @property
    def vectors(self) -> tuple[Port, ...]:
        """The vectors of the norms."""
        own = [(name, dtype) for name, dtype in (("weight", self.weight), ("bias", self.bias)) if dtype]
        return (*own, *((f"hidden_{name}", dtype) for name, dtype in own)) if self.does == "read" else tuple(own)

    @property
    def inputs(self) -> tuple[Port, ...]:
        """x, the norms, which rows, and the store."""
        places: list[Port] = [("slots", DType.I32)]
        if self.does == "guess":
            places = [] if self.one_each else [("rows", DType.I32), ("dims", DType.U32), ("query_start", DType.I32)]
            tables = ("positions", *(["block_tables"] if self.mode == "paged" else []))
            places += [(name, DType.I32) for name in tables]
        return (("x", self.activation), *self.vectors, *places, (HIDDEN, self.cache), ("token", DType.U32))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Both norms and the row, where it reads, and the token."""
        out: tuple[Port, ...] = (("out", self.activation),) if self.does == "read" else ()
        row: tuple[Port, ...] = () if self.gives is None else (("row", self.activation),)
        return (*out, *row, ("token_out", DType.U32))

    @property
    def loads(self) -> tuple[tuple[str, int], ...]:
        """The vector loads that it needs: element type, and elements of a load."""
        read = (self.activation, self.cache if self.does == "read" else None, self.weight, self.bias)
        return tuple(dict.fromkeys((str(dtype), QUAD) for dtype in read if dtype))

    @property
    def piece(self) -> int:
        """Columns of a row."""
        return self.width

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the simdgroups' sums."""
        return 0 if self.kind is None else sums_bytes(self.kind, self.simdgroups)


@lowers(HiddenWrite, GuessWrite, GuessInput)
def lower_hidden(lowering: MetalLowering, op: Op, attrs: HiddenOp) -> None:
    """Adds the launch of an op.

    Raises:
        PlanError: rows cannot be read 4 elements at a time.
    """
    x, store = lowering.value(op, "x"), lowering.value(op, HIDDEN)
    if num_columns(x) % QUAD:
        raise PlanError(
            f"op {op.name!r} reads rows of {num_columns(x)} columns, and Metal kernels read {QUAD} at a time"
        )
    does: Literal["keep", "guess", "read"] = "read" if isinstance(attrs, GuessInput) else "keep"
    does = "guess" if isinstance(attrs, GuessWrite) else does
    one_each = does == "guess" and lowering.phase == "decode"
    kernel = HiddenKernel(
        f"{op.kind}_each" if one_each else op.kind,
        does,
        num_columns(x),
        attrs.kind,
        attrs.eps,
        lowering.optional_dtype(op, "weight"),
        lowering.optional_dtype(op, "bias"),
        isinstance(attrs, GuessInput) and attrs.hidden_first,
        attrs.gives if isinstance(attrs, GuessInput) else None,
        x.dtype,
        store.dtype,
        lowering.arena.mode,
        lowering.arena.block_size,
        one_each,
    )
    grids = {
        "keep": (Extent(dim="tokens"),),
        "guess": (Extent(dim="seqs"),),
        "read": (Extent(dim="tokens"), Extent(times=2)),
    }
    buffers = {"token_out": op.outputs["token"], "dims": "dims"}
    buffers |= {port: op.outputs[port] for port in ("out", "row") if port in op.outputs}
    lowering.emit(op, kernel, grids[does], buffers)

"""Rows of the embedding table."""

from dataclasses import dataclass
from typing import Literal, get_args

from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.rows import Embed
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel, Param
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers

_Ids = Literal["token_ids", "positions", "token_types"]
_IDS: dict[str, _Ids] = {name: name for name in get_args(_Ids)}


@dataclass(frozen=True)
class CpuEmbed(CpuKernel):
    """out = table[token_ids] * scale, [tokens, hidden_size] f32, or rows of positions, added to a residual.

    Attributes:
        vocab_size: rows of the table.
        layout: `rows`: as in the file; `packed`: panels of a quantised format.
        first_row: the id of the table's first row; ids that it has no row for give zeros. None: it has all rows.
        ids: what the rows are of, a field of the batch.
        residual: whether the rows are added to one.
    """

    template = "embed.jinja"
    vocab_size: int
    hidden_size: int
    format: WeightFormat
    layout: Literal["rows", "packed"]
    scale: float = 1.0
    first_row: int | None = None
    ids: _Ids = "token_ids"
    residual: bool = False

    @property
    def params(self) -> tuple[Param, ...]:
        """The table, the residual if there is one, and the result."""
        residual = (Param("residual", "input"),) if self.residual else ()
        return (Param("table", "matrix"), *residual, Param("out", "output"))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the table."""
        return self.format.row_bytes(self.hidden_size)

    @property
    def c_format(self) -> str:
        """The format's number in C."""
        return f"MLXR_{self.format.upper()}"


@lowers(Embed)
def lower_embed(lowering: CpuLowering, op: Op, attrs: Embed) -> None:
    """Adds the call for an op."""
    table = lowering.value(op, "table")
    vocab_size, hidden_size = table.shape
    assert isinstance(vocab_size, int) and isinstance(hidden_size, int), "weights have no symbolic dims"
    weight_format = lowering.spec.weights.of_tensor(table.parts[0])
    kernel = CpuEmbed(
        label="embed",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        format=weight_format,
        layout="packed" if weight_format.is_quantised else "rows",
        scale=attrs.scale,
        first_row=attrs.first_row,
        ids=_IDS[op.inputs["ids"]],
        residual="residual" in op.inputs,
    )
    lowering.add_call(op, kernel)

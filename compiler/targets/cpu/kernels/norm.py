"""Norms of rows that no pass fused with a projection."""

from dataclasses import dataclass
from typing import Literal

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import NormKind
from mlxr.compiler.ir.ops.norm import Norm, NormRows
from mlxr.compiler.ir.ops.shared_norm import NormOfPart
from mlxr.compiler.targets.cpu.kernel_parts.adapted import adapted_norm
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel, Param
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers


@dataclass(frozen=True)
class CpuNorm(CpuKernel):
    """out = residual + residual_scale * norm(x), rows of f32.

    Attributes:
        width: columns of a row.
        groups: number of equal pieces of a row, each of which is normalised alone.
        kind, eps: see `Norm`.
        piece_weights: whether each piece has its own weights, [width], or all share them, [width / groups].
        weight: whether the norm has one.
        mean_square: the column of `mean_squares` with that of all columns, of which x has some; None: x has all.
        bias, residual: whether the norm adds one.
        residual_scale: factor of the norm.
        count: the field of the batch with the number of rows: `tokens` for all, `rows` for rows of logits.
        gather: whether its rows are the batch's `logit_rows` of x.
        scale: whether a number, [1], multiplies the result.
    """

    template = "norm.jinja"
    width: int
    groups: int
    kind: NormKind
    eps: float
    piece_weights: bool
    bias: bool
    residual: bool
    residual_scale: float
    count: Literal["tokens", "rows"]
    gather: bool = False
    scale: bool = False
    weight: bool = True
    mean_square: int | None = None

    @property
    def params(self) -> tuple[Param, ...]:
        """x, weight, bias, residual, out."""
        params = [Param("x", "input")]
        if self.weight:
            params.append(Param("weight", "vector"))
        if self.bias:
            params.append(Param("bias", "vector"))
        if self.residual:
            params.append(Param("residual", "input"))
        if self.scale:
            params.append(Param("scale", "vector"))
        if self.mean_square is not None:
            params.append(Param("mean_squares", "input"))
        return (*params, Param("out", "output"))

    @property
    def columns(self) -> int:
        """Columns of a piece."""
        return self.width // self.groups

    @property
    def factor(self) -> float:
        """Factor of the norm, for C; 0 for none."""
        return 0.0 if self.residual_scale == 1 else self.residual_scale

    @property
    def formula(self) -> str:
        """The formula, for the head of the function."""
        scale = f"{self.residual_scale} * " if self.factor else ""
        x = "x[logit_rows]" if self.gather else "x"
        pieces = f" of {self.groups} pieces" if self.groups > 1 else ""
        return f"{self.label}: out = {'residual + ' if self.residual else ''}{scale}{self.kind}_norm({x}){pieces}"

    @property
    def buffer_table(self) -> str:
        """Its buffers, for the head of the function."""
        weights = self.width if self.piece_weights else self.columns
        x_rows = "tokens" if self.gather else self.count
        rows = [f"x        [{x_rows}, {self.width}] f32"]
        if self.weight:
            rows.append(f"weight   [{weights}] f32")
        if self.bias:
            rows.append(f"bias     [{weights}] f32")
        if self.residual:
            rows.append(f"residual [{self.count}, {self.width}] f32")
        if self.scale:
            rows.append("scale    [1] f32: multiplies the result")
        if self.mean_square is not None:
            rows.append(f"mean_squares [tokens, 2] f32: in column {self.mean_square} that of the columns of all ranks")
        rows.append(f"out      [{self.count}, {self.width}] f32")
        return "".join(f"//   {row}\n" for row in rows)


@lowers(Norm)
def lower_norm(lowering: CpuLowering, op: Op, attrs: Norm) -> None:
    """Adds the call for an op, unless the calls that read it compute it."""
    if adapted_norm(lowering.graph, op.out) is not None:
        return
    width = lowering.width(op, "x")
    parameters = [port for port in ("weight", "bias") if port in op.inputs]
    kernel = CpuNorm(
        label="norm",
        width=width,
        groups=attrs.groups,
        kind=attrs.kind,
        eps=attrs.eps,
        piece_weights=attrs.groups > 1 and any(lowering.width(op, port) == width for port in parameters),
        bias="bias" in op.inputs,
        residual="residual" in op.inputs,
        residual_scale=attrs.residual_scale,
        count="rows" if lowering.value(op, "x").shape[0] == "rows" else "tokens",
        scale="scale" in op.inputs,
        weight="weight" in op.inputs,
    )
    lowering.add_call(op, kernel)


@lowers(NormOfPart)
def lower_norm_of_part(lowering: CpuLowering, op: Op, attrs: NormOfPart) -> None:
    """Adds the call for an op."""
    kernel = CpuNorm(
        label="norm_of_part",
        width=lowering.width(op, "x"),
        groups=1,
        kind="rms",
        eps=attrs.eps,
        piece_weights=False,
        bias=False,
        residual=False,
        residual_scale=1.0,
        count="tokens",
        mean_square=attrs.column,
    )
    lowering.add_call(op, kernel)


@lowers(NormRows)
def lower_norm_rows(lowering: CpuLowering, op: Op, attrs: NormRows) -> None:
    """Adds the call for an op."""
    kernel = CpuNorm(
        label="hidden",
        width=lowering.width(op, "x"),
        groups=1,
        kind=attrs.kind,
        eps=attrs.eps,
        piece_weights=False,
        bias="bias" in op.inputs,
        residual=False,
        residual_scale=1.0,
        count="rows",
        gather=True,
        weight="weight" in op.inputs,
    )
    lowering.add_call(op, kernel)

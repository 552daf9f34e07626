"""Norms of rows that no projection normalises itself."""

from dataclasses import dataclass, replace

from mlxr.compiler.artifact.launch import ONE, Extent
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import NormKind
from mlxr.compiler.ir.ops.norm import Norm, NormRows
from mlxr.compiler.ir.ops.shared_norm import NormOfPart
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.fused_norm import FusedNorm
from mlxr.compiler.targets.metal.kernel_parts.row_kernel import RowKernel
from mlxr.compiler.targets.metal.kernel_parts.row_sums import QUAD, check_columns, sums_bytes
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers, num_columns, row_count

_MOST_AHEAD = 4
"""Vectors of 4 elements of the weight that a lane holds while it waits for x."""


@dataclass(frozen=True)
class NormKernel(RowKernel):
    """residual + residual_scale * norm(x), of each of `groups` equal pieces of a row.

    Attributes:
        width: columns of x [tokens, width or more] that are normalised, the first ones.
        groups: number of equal pieces of a row; each is normalised alone.
        kind: `rms` or `layer`.
        eps: added to the mean square, or to the variance.
        shared: whether all pieces have one weight [width / groups]; otherwise the weight is [width].
        weight, bias: element types of the weight and of the bias; None: there is none.
        residual: whether the norm is added to a residual, which has x's type.
        residual_scale: factor of the norm where it is added to a residual.
        activation: element type of x.
        result: element type of the result; None: x's.
        gather: whether the input `rows` selects rows of x.
        scale: element type of the number that multiplies the result, [1]; None: there is none.
        columns: columns of x, where it has more than `width`; 0: it has no others.
        mean_square: the column of `mean_squares` with that of all columns, of which x has some; None: x has all.
        then: a norm of the result's root mean square, whose own result is `normed`; None: there is none.
        early: whether it asks for the weight before it waits for x, if a lane has few elements.
    """

    template = "norm.metal.jinja"
    width: int
    groups: int
    kind: NormKind
    eps: float
    shared: bool
    weight: DType | None
    bias: DType | None
    residual: bool
    residual_scale: float
    activation: DType
    result: DType | None = None
    gather: bool = False
    scale: DType | None = None
    columns: int = 0
    mean_square: int | None = None
    then: FusedNorm | None = None
    early: bool = False

    @property
    def ahead(self) -> bool:
        """Whether a lane has its elements of the weight before x is there."""
        return self.early and self.weight is not None and self.quads <= _MOST_AHEAD

    @property
    def x_width(self) -> int:
        """Columns of x."""
        return self.columns or self.width

    @property
    def inputs(self) -> tuple[Port, ...]:
        """x, the weight, and the bias, the residual and the selected rows where there are any."""
        ports: list[Port] = [("x", self.activation)]
        if self.weight:
            ports.append(("weight", self.weight))
        if self.bias:
            ports.append(("bias", self.bias))
        if self.residual:
            ports.append(("residual", self.activation))
        if self.scale:
            ports.append(("scale", self.scale))
        if self.gather:
            ports.append(("rows", DType.I32))
        if self.mean_square is not None:
            ports.append(("mean_squares", DType.F32))
        return (*ports, *self.then.ports) if self.then else tuple(ports)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The result, and its norm."""
        return (("out", self.out), ("normed", self.out)) if self.then else (("out", self.out),)

    @property
    def of_result(self) -> "NormKernel":
        """What the second norm shares with the first one, and its own numbers."""
        assert self.then is not None and self.then.kind == "rms" and not self.then.bias, "of root mean squares"
        return replace(self, kind="rms", eps=self.then.eps)

    @property
    def out(self) -> DType:
        """Element type of the result."""
        return self.result or self.activation

    @property
    def loads(self) -> tuple[tuple[str, int], ...]:
        """The vector loads that it needs: element type, and elements of a load."""
        return tuple((str(d), QUAD) for d in self._read if d)

    @property
    def _read(self) -> tuple[DType | None, ...]:
        return self.activation, self.weight, self.bias, self.then.weight if self.then else None

    @property
    def piece(self) -> int:
        """Columns of a piece."""
        return self.width // self.groups

    @property
    def parameters(self) -> int:
        """Elements of the weight, and as many of the bias."""
        return self.piece if self.shared else self.width

    @property
    def exact(self) -> bool:
        """Whether no lane holds elements past the end of its piece."""
        return self.piece == self.quads * self.threads * QUAD

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the simdgroups' sums."""
        if self.mean_square is not None:
            return 0
        second = sums_bytes("rms", self.simdgroups) if self.then else 0
        return sums_bytes(self.kind, self.simdgroups) + second


@lowers(Norm)
def lower_norm(lowering: MetalLowering, op: Op, attrs: Norm) -> None:
    """Adds the launch of a norm.

    Raises:
        PlanError: the pieces of a row cannot be read 4 elements at a time.
    """
    x = lowering.value(op, "x")
    width, groups = num_columns(x), attrs.groups
    parameters = next((lowering.value(op, port) for port in ("weight", "bias") if port in op.inputs), None)
    check_columns(op, width // groups)
    kernel = NormKernel(
        "norm",
        width=width,
        groups=groups,
        kind=attrs.kind,
        eps=attrs.eps,
        shared=groups > 1 and parameters is not None and parameters.shape != (width,),
        weight=lowering.optional_dtype(op, "weight"),
        bias=lowering.optional_dtype(op, "bias"),
        residual="residual" in op.inputs,
        residual_scale=attrs.residual_scale,
        activation=x.dtype,
        scale=lowering.optional_dtype(op, "scale"),
    )
    lowering.emit(op, kernel, (Extent(times=groups), row_count(x)), {"out": op.out})


@lowers(NormOfPart)
def lower_norm_of_part(lowering: MetalLowering, op: Op, attrs: NormOfPart) -> None:
    """Adds the launch of the norm of some columns of a row, by the mean square of all.

    Raises:
        PlanError: rows cannot be read 4 elements at a time.
    """
    x = lowering.value(op, "x")
    check_columns(op, num_columns(x))
    kernel = NormKernel(
        "norm_of_part",
        width=num_columns(x),
        groups=1,
        kind="rms",
        eps=attrs.eps,
        shared=False,
        weight=lowering.optional_dtype(op, "weight"),
        bias=None,
        residual=False,
        residual_scale=1.0,
        activation=x.dtype,
        mean_square=attrs.column,
    )
    lowering.emit(op, kernel, (ONE, row_count(x)), {"out": op.out})


@lowers(NormRows)
def lower_norm_rows(lowering: MetalLowering, op: Op, attrs: NormRows) -> None:
    """Adds the launch of the norms of some rows.

    Raises:
        PlanError: rows cannot be read 4 elements at a time.
    """
    x = lowering.value(op, "x")
    check_columns(op, num_columns(x))
    kernel = NormKernel(
        "hidden",
        width=num_columns(x),
        groups=1,
        kind=attrs.kind,
        eps=attrs.eps,
        shared=False,
        weight=lowering.optional_dtype(op, "weight"),
        bias=lowering.optional_dtype(op, "bias"),
        residual=False,
        residual_scale=1.0,
        activation=x.dtype,
        result=DType.F32,
        gather=True,
    )
    lowering.emit(op, kernel, (ONE, Extent(dim="rows")), {"out": op.out})

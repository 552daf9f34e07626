"""The base of the C kernels that multiply rows of inputs with weight matrices.

The number of rows decides at run time how a product is computed; see templates/cpu/projection.h. Unless `compute` is
`fast`, all ways give the same bits. Scratch is large enough for the machine that needs the most.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import TypedDict

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.formats.weight_layout import PANEL_ROWS
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import NormKind
from mlxr.compiler.ir.ops.product import Product
from mlxr.compiler.schedule.kernel import round_up
from mlxr.compiler.targets.cpu.kernel_parts.finish_rows import FinishRows
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuHelper, CpuKernel, Param
from mlxr.compiler.targets.cpu.kernel_parts.matrix import HALF_FORMATS, Compute, Matrix
from mlxr.compiler.targets.cpu.lowering import CpuLowering
from mlxr.compiler.targets.epilogue import Epilogue, epilogue_of

_UNIT_BYTES = 2 * PANEL_ROWS * 4096  # the most unpacked weights of a unit of work
_UNITS = 8
_WAITING_BYTES = 2 * 32 * 16 * 4  # sums of a tile
_TILE_ROWS = 24, 32  # of f32, of bf16
TILE_ROWS = max(_TILE_ROWS)
"""Rows past the last one that a tile may read; their contents do not matter."""
_MOST_COLUMNS = 64


@dataclass(frozen=True)
class OutputSegment:
    """Adjacent outputs whose weights are one tensor, [rows, in_features]."""

    format: WeightFormat
    rows: int


@dataclass(frozen=True)
class CpuMatrixKernel(CpuKernel):
    """Base of the kernels that multiply rows of inputs with matrices.

    Attributes:
        in_features: columns of the matrices.
        segments: tensors in the order of the outputs; if gated, gate and up, of equal rows.
        compute: `exact` keeps inputs in f32; `fast` may round them to 8-bit integers or bf16; `steady` rounds like
            `fast`, but in the same way whatever the number of rows is.
        max_rows: the most rows of a batch.
        epilogue: the steps after the sums; its bias is [sum of the segments' rows].
        norm: the norm of x before the product; None without a norm.
        norm_weight: whether the norm multiplies by weights.
        norm_bias: whether the norm adds a bias. Only LayerNorm does.
        eps: added to the mean square by the norm; None without a norm.
    """

    in_features: int
    segments: tuple[OutputSegment, ...]
    compute: Compute
    max_rows: int
    epilogue: Epilogue
    norm: NormKind | None = None
    norm_bias: bool = False
    norm_weight: bool = True
    eps: float | None = None

    @property
    def _formats(self) -> frozenset[WeightFormat]:
        return frozenset(segment.format for segment in self.segments)

    @property
    def _all_quantised(self) -> bool:
        return all(format.is_quantised for format in self._formats)

    @property
    def rounding(self) -> Compute:
        """What `compute` means for its formats: `steady` is `fast` for integers, and `exact` for a mixture."""
        if self.compute != "steady" or self._formats <= HALF_FORMATS:
            return self.compute
        return "fast" if self._all_quantised else "exact"

    @property
    def tiles_f32(self) -> bool:
        """Whether products of many rows are in f32 on every machine."""
        return self.rounding == "exact" or WeightFormat.F32 in self._formats

    @property
    def wide(self) -> str:
        """The form to which many rows are converted, by its name in C."""
        return "MLXR_ROWS_F32" if self.tiles_f32 else "MLXR_ROWS_FAST"

    @property
    def few(self) -> str:
        """The most rows for which panels are not unpacked first, by the number's name in C."""
        if self.never_unpacks:
            return "INT32_MAX"
        if self.rounding == "steady":
            return "MLXR_FEW_STEADY"
        if self.tiles_f32:
            return "MLXR_FEW_F32"
        if self._formats == {WeightFormat.Q8_0}:
            return "MLXR_FEW_Q8_0"
        return "MLXR_FEW_INTEGER" if self._all_quantised else "MLXR_FEW_HALF"

    @property
    def never_unpacks(self) -> bool:
        """Whether panels are read as they lie for any number of rows, so that sums have one order."""
        return self.rounding == "exact" or (self.compute == "steady" and self._all_quantised)

    @property
    @abstractmethod
    def finish(self) -> FinishRows:
        """The function that turns sums into outputs."""

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """The multiplication of each segment's tensor."""
        return tuple(
            Matrix(segment.format, self.in_features, self.rounding, tiles_f32=self.tiles_f32)
            for segment in self.segments
        )

    @property
    def helpers(self) -> tuple[CpuHelper, ...]:
        """The multiplication of its matrices, and the epilogue."""
        return (*dict.fromkeys(self.matrices), self.finish)

    @property
    def _first_params(self) -> list[Param]:
        """x, the weights of its norm, and a weight per segment."""
        params = [Param("x", "input")]
        if self.norm and self.norm_weight:
            params.append(Param("norm", "vector"))
        if self.norm_bias:
            params.append(Param("norm_bias", "vector"))
        return params + [Param(f"w{index}", "matrix") for index in range(len(self.segments))]

    @property
    def _norm_table(self) -> list[str]:
        rows = [f"norm     [{self.in_features}] f32"] if self.norm and self.norm_weight else []
        return rows + ([f"norm_bias [{self.in_features}] f32"] if self.norm_bias else [])

    def _formula(self, x: str, of: str = "") -> str:
        """The formula, without the steps after the activation; `of` selects one of several matrices."""
        x = f"{self.norm}_norm({x})" if self.norm else x
        bias = " + bias" if self.epilogue.bias else ""
        if not self.epilogue.gated:
            y = f"{x} @ W{of}.T{bias}"
            return f"{self.epilogue.activation}({y})" if self.epilogue.activation else y
        gate, up = f"{x} @ w0{of}.T{bias}", f"{x} @ w1{of}.T{bias}"
        if self.epilogue.activation == "swiglu_oai":
            return f"swiglu_oai({gate}, {up})"
        return f"{self.epilogue.activation}({gate}) * ({up})"

    @property
    def _residual_formula(self) -> str:
        scale = "" if self.epilogue.residual_scale == 1 else f" * {self.epilogue.residual_scale}"
        return f"{scale}{' + residual' if self.epilogue.residual else ''}"

    @property
    def _many_bytes(self) -> int:
        """Scratch for many rows: blocks of unpacked weights and unfinished sums, or inputs transposed to 64 columns."""
        if self.never_unpacks:
            return 0
        tiles = -(-self.max_rows // _TILE_ROWS[0])
        return max(_UNITS * (_UNIT_BYTES + tiles * _WAITING_BYTES), round_up(self.in_features, 32) * _MOST_COLUMNS * 2)

    @property
    def _forms(self) -> int:
        """The most forms that rows have at the same time: the forms of few rows, and the form of many rows."""
        return len({matrix.form for matrix in self.matrices} | {self.wide})

    @property
    def _row_bytes(self) -> int:
        """Bytes of a row in its largest form: f32, with the sums of its sixteens."""
        return round_up(self.in_features, 32) * 4 + (-(-self.in_features // 256) | 1) * 64


class MatrixFields(TypedDict):
    """The fields of a `CpuMatrixKernel` that its op fixes."""

    in_features: int
    segments: tuple[OutputSegment, ...]
    max_rows: int
    norm: NormKind | None
    norm_bias: bool
    norm_weight: bool
    eps: float | None
    epilogue: Epilogue


def matrix_fields(lowering: CpuLowering, op: Op, attrs: Product, matrices: int = 1) -> MatrixFields:
    """The fields of an op's kernel. The weight has `matrices` matrices, one below the other."""
    parts, formats, norm = lowering.value(op, "weight").parts, lowering.spec.weights, attrs.norm
    return {
        "in_features": lowering.width(op, "weight"),
        "segments": tuple(
            OutputSegment(formats.of_tensor(part), lowering.shapes[part][0] // matrices) for part in parts
        ),
        "max_rows": lowering.max_tokens,
        "norm": norm.kind if norm else None,
        "norm_bias": "norm_bias" in op.inputs,
        "norm_weight": norm is None or "norm" in op.inputs,
        "eps": norm.eps if norm else None,
        "epilogue": epilogue_of(
            op,
            DType.F32,
            lambda port: DType.F32 if port in op.inputs else None,
            lowering.width(op, "times") if "times" in op.inputs else 0,
        ),
    }


def weight_label(lowering: CpuLowering, op: Op) -> str:
    """The last word of the name of an op's weight."""
    return lowering.value(op, "weight").name.rpartition(".")[2]


def weight_buffers(lowering: CpuLowering, op: Op) -> dict[str, str]:
    """The tensors of an op's weight by the kernel's parameters: w0, w1 and so on."""
    return {f"w{index}": part for index, part in enumerate(lowering.value(op, "weight").parts)}

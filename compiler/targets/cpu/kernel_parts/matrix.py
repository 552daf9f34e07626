"""The multiplication of a projection's weights: one pair of C functions for each format and number of columns."""

from dataclasses import dataclass
from typing import Literal

from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.formats.weight_layout import PANEL_ROWS
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuHelper

Compute = Literal["exact", "fast", "steady"]
"""What may be rounded: see `CpuMatrixKernel`."""
HALF_FORMATS = frozenset({WeightFormat.F16, WeightFormat.BF16})
"""Formats whose inputs may be rounded to bf16."""


@dataclass(frozen=True)
class Matrix(CpuHelper):
    """The multiplication of weights of one format and number of columns: an `mlxr_matrix` of projection.h.

    Attributes:
        compute: see `CpuMatrixKernel`.
        tiles_f32: whether the matmul of many rows is in f32 even if the machine has a faster one.
    """

    template = "matrix.jinja"
    format: WeightFormat
    columns: int
    compute: Compute
    tiles_f32: bool

    @property
    def name(self) -> str:
        """The format, its columns, and a suffix unless the fastest way is allowed."""
        suffix = f"_{self.compute}" if self.compute != "fast" else "_f32" if self.tiles_f32 else ""
        return f"{self.format}_{self.columns}{suffix}"

    @property
    def panel_bytes(self) -> int:
        """Bytes from one panel of 16 rows to the next."""
        return PANEL_ROWS * self.format.row_bytes(self.columns)

    @property
    def c_format(self) -> str:
        """The format's number in C."""
        return f"MLXR_{self.format.upper()}"

    @property
    def half_columns(self) -> bool:
        """Whether rows are rounded to bf16 and multiplied with matrix tiles, if the machine has them."""
        return self.compute != "exact" and self.format in HALF_FORMATS

    @property
    def form(self) -> str:
        """The form to which few rows of inputs are converted, by its name in C."""
        if self.half_columns:
            return "MLXR_ROWS_STEADY" if self.compute == "steady" else "MLXR_ROWS_HALF"
        return "MLXR_ROWS_I8" if self.format.is_quantised and self.compute == "fast" else "MLXR_ROWS_F32"

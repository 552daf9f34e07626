"""Parts of the C program that several projections share, each rendered once, before the kernels."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from mlxr.compiler.codegen.cpu.kernel import PANEL_ROWS
from mlxr.compiler.formats import WeightFormat

Compute = Literal["exact", "fast"]


@dataclass(frozen=True)
class CpuHelper(ABC):
    """C text rendered from a template that is given this as `h`."""

    template: ClassVar[str]

    @property
    @abstractmethod
    def name(self) -> str:
        """What it defines, or the start of its names. Unequal helpers have unequal names."""


@dataclass(frozen=True)
class Matrix(CpuHelper):
    """How weights of a format and a number of columns are multiplied: an `mlxr_matrix` of projection.h.

    Attributes:
        tiles_f32: the matmul of many rows is f32 even if the machine has a faster one.
    """

    template = "matrix.jinja"
    format: WeightFormat
    columns: int
    compute: Compute
    tiles_f32: bool

    @property
    def name(self) -> str:
        """The format, its columns, and what differs from the fastest way."""
        suffix = "_exact" if self.compute == "exact" else "_f32" if self.tiles_f32 else ""
        return f"{self.format}_{self.columns}{suffix}"

    @property
    def panel_bytes(self) -> int:
        """From one panel of 16 rows to the next."""
        return PANEL_ROWS * self.format.row_bytes(self.columns)

    @property
    def c_format(self) -> str:
        """The format's number in C."""
        return f"MLXR_{self.format.upper()}"

    @property
    def half_columns(self) -> bool:
        """Whether several rows go through matrix tiles, rounded to bf16."""
        return self.compute == "fast" and self.format in (WeightFormat.F16, WeightFormat.BF16)

    @property
    def form(self) -> str:
        """What few inputs are made into."""
        if self.half_columns:
            return "MLXR_ROWS_HALF"
        return "MLXR_ROWS_I8" if self.format.is_quantised and self.compute == "fast" else "MLXR_ROWS_F32"


@dataclass(frozen=True)
class Finish(CpuHelper):
    """An epilogue: bias, activation(gate) * up and residual, in this order."""

    template = "finish.jinja"
    activation_kind: str | None
    bias: bool
    residual: bool

    @property
    def name(self) -> str:
        """What is done."""
        steps = ("bias" if self.bias else None, self.activation_kind, "residual" if self.residual else None)
        return "_".join(("finish", *(step for step in steps if step)))

    @property
    def kind(self) -> str:
        """The activation's number in C."""
        return f"MLXR_{(self.activation_kind or 'no_activation').upper()}"

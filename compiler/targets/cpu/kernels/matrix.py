"""Parts of the C program that several projections share, each rendered once, before the kernels."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.formats.weight_layout import PANEL_ROWS
from mlxr.compiler.targets.environment import float_literal
from mlxr.compiler.targets.epilogue import Epilogue

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
class FinishRows(CpuHelper):
    """The function that finishes rows of sums.

    Attributes:
        epilogue: what it does.
        choices: None, `apart`: rows belong elsewhere, or `summed`: they do, and are multiplied by a number each.
    """

    template = "finish.jinja"
    epilogue: Epilogue
    choices: Literal["apart", "summed"] | None = None

    @property
    def _numbers(self) -> dict[str, float]:
        """Numbers of the steps that are there, by their names in C."""
        e = self.epilogue
        scales = {"out_scale": e.out_scale, "residual_scale": e.residual_scale}
        bounds = {"limit": e.limit, "out_cap": e.out_cap}
        return {name: v for name, v in scales.items() if v != 1} | {name: v for name, v in bounds.items() if v}

    @property
    def name(self) -> str:
        """What is done."""
        e, kind = self.epilogue, self.epilogue.activation
        activation = f"ungated_{kind}" if kind and not e.gated else kind
        steps = ("bias" if e.bias else None, activation, "gate" if e.gate else None, self.choices)
        # A number in a name: 0.5 -> 0p5, -1e-05 -> m1em05.
        texts = {
            name: repr(v).replace(".", "p").replace("-", "m").replace("+", "") for name, v in self._numbers.items()
        }
        numbers = [f"{name}_{text}" for name, text in texts.items()]
        last = "residual" if e.residual else None
        return "_".join(("finish", *(step for step in (*steps, *numbers, last) if step)))

    @property
    def steps(self) -> str:
        """The steps as fields of an `mlxr_epilogue`."""
        e = self.epilogue
        flags = {
            "bias": e.bias is not None,
            "gated": e.gated,
            "gate": e.gate is not None,
            "places": self.choices is not None,
            "factors": self.choices == "summed",
            "residual": e.residual,
        }
        fields = [f".activation = MLXR_{e.activation.upper()}"] if e.activation else []
        fields += [f".{name} = 1" for name, there in flags.items() if there]
        fields += [f".{name} = {float_literal(v)}" for name, v in self._numbers.items()]
        return ", ".join(fields) or "0"

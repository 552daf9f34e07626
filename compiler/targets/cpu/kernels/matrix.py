"""Parts of the C program that several projections share, each rendered once, before the kernels."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.formats.weight_layout import PANEL_ROWS
from mlxr.compiler.targets.environment import float_literal

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
    """An epilogue: its fields are its steps, in this order.

    Attributes:
        bias: whether a bias is added.
        activation_kind: silu, gelu, gelu_tanh, relu, relu2 or swiglu_oai.
        gated: whether there are gate and up: activation(gate) * up, else activation(y).
        limit: what bounds gate and up of swiglu_oai.
        out_scale: what results are multiplied by.
        out_cap: results become out_cap * tanh(result / out_cap).
        gate: whether rows are multiplied by the sigmoid of a number each.
        choices: None, `apart`: rows belong elsewhere, or `summed`: they do, and are multiplied by a number each.
        residual_scale: what results are multiplied by before the residual.
        residual: whether a residual is added.
    """

    template = "finish.jinja"
    bias: bool = False
    activation_kind: str | None = None
    gated: bool = False
    limit: float | None = None
    out_scale: float = 1.0
    out_cap: float | None = None
    gate: bool = False
    choices: Literal["apart", "summed"] | None = None
    residual_scale: float = 1.0
    residual: bool = False

    @property
    def _numbers(self) -> dict[str, float]:
        """Numbers of the steps that are there, by their names in C."""
        scales = {"out_scale": self.out_scale, "residual_scale": self.residual_scale}
        bounds = {"limit": self.limit, "out_cap": self.out_cap}
        return {name: v for name, v in scales.items() if v != 1} | {name: v for name, v in bounds.items() if v}

    @property
    def name(self) -> str:
        """What is done."""
        kind = self.activation_kind
        if kind and not self.gated:
            kind = f"ungated_{kind}"
        steps = ("bias" if self.bias else None, kind, "gate" if self.gate else None, self.choices)
        # A number in a name: 0.5 -> 0p5, -1e-05 -> m1em05.
        texts = {
            name: repr(v).replace(".", "p").replace("-", "m").replace("+", "") for name, v in self._numbers.items()
        }
        numbers = [f"{name}_{text}" for name, text in texts.items()]
        last = "residual" if self.residual else None
        return "_".join(("finish", *(step for step in (*steps, *numbers, last) if step)))

    @property
    def steps(self) -> str:
        """The steps as fields of an `mlxr_epilogue`."""
        flags = {
            "bias": self.bias,
            "gated": self.gated,
            "gate": self.gate,
            "places": self.choices is not None,
            "factors": self.choices == "summed",
            "residual": self.residual,
        }
        fields = [f".activation = MLXR_{self.activation_kind.upper()}"] if self.activation_kind else []
        fields += [f".{name} = 1" for name, there in flags.items() if there]
        fields += [f".{name} = {float_literal(v)}" for name, v in self._numbers.items()]
        return ", ".join(fields) or "0"

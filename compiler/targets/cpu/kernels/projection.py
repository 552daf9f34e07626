"""Contexts of the C kernels that read weight matrices: projections and the embedding.

Which way a projection goes is decided at run time by its number of rows; see templates/cpu/projection.h. Scratch is
counted here for the machine that needs most.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.formats.weight_layout import PANEL_ROWS
from mlxr.compiler.targets.cpu.kernels.kernel import CpuKernel, Param
from mlxr.compiler.targets.cpu.kernels.matrix import Compute, CpuHelper, FinishRows, Matrix
from mlxr.compiler.targets.epilogue import Epilogue
from mlxr.compiler.targets.rounding import round_up

NormKind = Literal["rms", "layer"]
_UNIT_BYTES = 2 * PANEL_ROWS * 4096  # of unpacked weights, at most
_UNITS = 8
_WAITING_BYTES = 2 * 32 * 16 * 4  # sums of a tile
_TILE_ROWS = 24, 32  # of f32, of bf16
TILE_ROWS = max(_TILE_ROWS)
"""Rows that may be read, with no meaning, past the last one."""
_MOST_COLUMNS = 64


@dataclass(frozen=True)
class Segment:
    """Adjacent outputs whose weights are one tensor: [rows, in_features]."""

    format: WeightFormat
    rows: int


@dataclass(frozen=True)
class Product:
    """Adjacent columns of a result, as C computes them.

    The product with `weight`, or with two weights activation(gate) * up.
    """

    matrix: Matrix
    weight: str
    up_matrix: Matrix | None
    up: str | None
    rows: int


@dataclass(frozen=True)
class CpuMatrixKernel(CpuKernel):
    """Base of the kernels that multiply rows of inputs with matrices.

    Attributes:
        in_features: columns of the matrices.
        segments: tensors in the order of the outputs; if gated, gate and up, of equal rows.
        norm: the norm that x goes through first, with `eps`; `norm_bias`: whether that adds one (of LayerNorm alone).
        eps: what keeps the norm's root from zero; None without a norm.
        compute: exact keeps f32 inputs; fast may make 8-bit integers or bf16 of them.
        max_rows: most rows at once.
        epilogue: what is done with the sums; its bias is [sum of the segments' rows].
    """

    in_features: int
    segments: tuple[Segment, ...]
    compute: Compute
    max_rows: int
    epilogue: Epilogue
    norm: NormKind | None = None
    norm_bias: bool = False
    eps: float | None = None

    @property
    def tiles_f32(self) -> bool:
        """Whether many rows are multiplied in f32 on every machine."""
        return self.compute == "exact" or any(segment.format is WeightFormat.F32 for segment in self.segments)

    @property
    def wide(self) -> str:
        """The form of many rows."""
        return "MLXR_ROWS_F32" if self.tiles_f32 else "MLXR_ROWS_FAST"

    @property
    def few(self) -> str:
        """The most rows for which panels are read as they lie."""
        if self.tiles_f32:
            return "MLXR_FEW_F32"
        quantised = all(segment.format.is_quantised for segment in self.segments)
        return "MLXR_FEW_INTEGER" if quantised else "MLXR_FEW_HALF"

    @property
    @abstractmethod
    def finish(self) -> FinishRows:
        """The function that finishes its rows."""

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """How each segment's tensor is read."""
        return tuple(
            Matrix(segment.format, self.in_features, self.compute, tiles_f32=self.tiles_f32)
            for segment in self.segments
        )

    @property
    def helpers(self) -> tuple[CpuHelper, ...]:
        """What is rendered before it."""
        return (*dict.fromkeys(self.matrices), self.finish)

    @property
    def _first_params(self) -> list[Param]:
        """x, what norms it, and a weight per segment."""
        params = [Param("x", "input")]
        if self.norm:
            params.append(Param("norm", "vector"))
        if self.norm_bias:
            params.append(Param("norm_bias", "vector"))
        return params + [Param(f"w{index}", "matrix") for index in range(len(self.segments))]

    @property
    def _norm_table(self) -> list[str]:
        rows = [f"norm     [{self.in_features}] f32"] if self.norm else []
        return rows + ([f"norm_bias [{self.in_features}] f32"] if self.norm_bias else [])

    def _formula(self, x: str, of: str = "") -> str:
        """What it computes of its inputs; `of` is what selects among several matrices."""
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
        """Blocks of unpacked weights and sums that wait; or inputs turned into 64 columns."""
        tiles = -(-self.max_rows // _TILE_ROWS[0])
        return max(_UNITS * (_UNIT_BYTES + tiles * _WAITING_BYTES), round_up(self.in_features, 32) * _MOST_COLUMNS * 2)

    @property
    def _forms(self) -> int:
        """Forms that rows may take at once, at most: those of few rows, and that of many."""
        return len({matrix.form for matrix in self.matrices} | {self.wide})

    @property
    def _row_bytes(self) -> int:
        """Of the largest form."""
        return round_up(self.in_features, 32) * 4 + 64


@dataclass(frozen=True)
class CpuProjection(CpuMatrixKernel):
    """out = x @ W.T, [rows, out_features] f32, with what is fused around it.

    Attributes:
        gather: whether rows are those of the batch's logit_rows, else all tokens.
        logits: whether the batch says where the result goes.
    """

    template = "projection.jinja"
    gather: bool = False
    logits: bool = False

    @property
    def params(self) -> tuple[Param, ...]:
        """x, norm, norm_bias, a weight per segment, bias, residual, gate, out."""
        params = self._first_params
        if self.epilogue.bias:
            params.append(Param("bias", "vector"))
        if self.epilogue.residual:
            params.append(Param("residual", "input"))
        if self.epilogue.gate:
            params.append(Param("gate", "input"))
        return (*params, Param("out", "output"))

    @property
    def out_features(self) -> int:
        """Columns of the result."""
        rows = sum(segment.rows for segment in self.segments)
        return rows // 2 if self.epilogue.gated else rows

    @property
    def products(self) -> tuple[Product, ...]:
        """The result's columns, in order."""
        tensors = [(m, f"w{i}", s.rows) for i, (m, s) in enumerate(zip(self.matrices, self.segments, strict=True))]
        if self.epilogue.gated:
            (gate, w0, rows), (up, w1, up_rows) = tensors
            assert rows == up_rows, "gate and up have equal rows"
            return (Product(gate, w0, up, w1, rows),)
        return tuple(Product(matrix, weight, None, None, rows) for matrix, weight, rows in tensors)

    @property
    def finish(self) -> FinishRows:
        """The function that finishes its rows."""
        return FinishRows(self.epilogue)

    @property
    def count(self) -> str:
        """The batch's field that counts its rows."""
        return "rows" if self.gather else "tokens"

    @property
    def formula(self) -> str:
        """What it computes."""
        y = self._formula("x[logit_rows]" if self.gather else "x")
        if self.epilogue.out_scale != 1:
            y = f"({y}) * {self.epilogue.out_scale}"
        if self.epilogue.out_cap:
            y = f"{self.epilogue.out_cap} * tanh(({y}) / {self.epilogue.out_cap})"
        if self.epilogue.gate:
            y = f"sigmoid(gate) * ({y})"
        return f"{self.label}: out = {y}{self._residual_formula}"

    @property
    def buffer_table(self) -> str:
        """Its buffers, for the head of the function."""
        n = self.out_features
        rows = [f"x        [tokens, {self.in_features}] f32", *self._norm_table]
        rows += [f"{f'w{i}':8} [{s.rows}, {self.in_features}] {s.format}" for i, s in enumerate(self.segments)]
        if self.epilogue.bias:
            rows.append(f"bias     [{sum(s.rows for s in self.segments)}] f32")
        if self.epilogue.residual:
            rows.append(f"residual [tokens, {n}] f32")
        if self.epilogue.gate:
            rows.append("gate     [tokens, 1] f32")
        rows.append(f"out      [{self.count}, {n}] f32")
        return "".join(f"//   {row}\n" for row in rows)

    @property
    def thread_bytes(self) -> int:
        """A row in f32; then a row in every form and 64 of bf16, or blocks of unpacked weights and sums that wait."""
        return round_up(self.in_features, 32) * 4 + 3 * self._row_bytes + self._many_bytes

    @property
    def shared_bytes(self) -> int:
        """All rows, and those of a tile past the last one, in each form that few rows may take."""
        forms = len({matrix.form for matrix in self.matrices})
        return forms * (self.max_rows + TILE_ROWS) * self._row_bytes


@dataclass(frozen=True)
class CpuEmbed(CpuKernel):
    """out = table[token_ids] * scale, [tokens, hidden_size] f32.

    Attributes:
        layout: rows as in the file, or packed panels of a quantised format.
    """

    template = "embed.jinja"
    vocab_size: int
    hidden_size: int
    format: WeightFormat
    layout: Literal["rows", "packed"]
    scale: float = 1.0

    @property
    def params(self) -> tuple[Param, ...]:
        """The table and the result."""
        return (Param("table", "matrix"), Param("out", "output"))

    @property
    def row_bytes(self) -> int:
        """Of a row of the table."""
        return self.format.row_bytes(self.hidden_size)

    @property
    def c_format(self) -> str:
        """The format's number in C."""
        return f"MLXR_{self.format.upper()}"

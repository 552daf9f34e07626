"""Contexts of the C kernels that read weight matrices: projections and the embedding.

Which way a projection goes is decided at run time by its number of rows; see templates/cpu/projection.h. Scratch is
counted here for the machine that needs most.
"""

from dataclasses import dataclass
from typing import Literal

from mlxr.compiler.codegen.cpu.kernel import PANEL_ROWS, CpuKernel, Param
from mlxr.compiler.codegen.cpu.matrix import Compute, CpuHelper, Finish, Matrix
from mlxr.compiler.codegen.kernels import round_up
from mlxr.compiler.formats import WeightFormat

_UNIT_BYTES = 2 * PANEL_ROWS * 4096  # of unpacked weights, at most
_UNITS = 8
_WAITING_BYTES = 2 * 32 * 16 * 4  # sums of a tile
_TILE_ROWS = 24, 32  # of f32, of bf16
_MOST_COLUMNS = 64


@dataclass(frozen=True)
class Segment:
    """Adjacent outputs whose weights are one tensor: [rows, in_features]."""

    format: WeightFormat
    rows: int


@dataclass(frozen=True)
class Output:
    """Adjacent outputs as C computes them: the product with `weight`, or activation(gate) * up with two weights."""

    matrix: Matrix
    weight: str
    up_matrix: Matrix | None
    up: str | None
    rows: int


@dataclass(frozen=True)
class CpuProjection(CpuKernel):
    """out = x @ W.T, [rows, out_features] f32, with what is fused around it.

    Attributes:
        segments: tensors in the order of the outputs. With an activation: gate and up, of equal rows.
        norm: whether x goes through RMSNorm first, with `eps`.
        bias: whether [sum of the segments' rows] is added.
        residual: whether [rows, out_features] is added last.
        gather: whether rows are those of the batch's logit_rows, else all tokens.
        activation_kind: silu, gelu or gelu_tanh: out = activation(gate) * up.
        compute: exact keeps f32 inputs; fast may make 8-bit integers or bf16 of them.
        max_rows: most rows at once.
        logits: whether the batch says where the result goes.
    """

    template = "projection.jinja"
    in_features: int
    segments: tuple[Segment, ...]
    norm: bool
    eps: float | None
    bias: bool
    residual: bool
    gather: bool
    activation_kind: str | None
    compute: Compute
    max_rows: int
    logits: bool

    @property
    def params(self) -> tuple[Param, ...]:
        """x, norm, a weight per segment, bias, residual, out."""
        params = [Param("x", "input")]
        if self.norm:
            params.append(Param("norm", "vector"))
        params += [Param(f"w{index}", "matrix") for index in range(len(self.segments))]
        if self.bias:
            params.append(Param("bias", "vector"))
        if self.residual:
            params.append(Param("residual", "input"))
        return (*params, Param("out", "output"))

    @property
    def out_features(self) -> int:
        """Columns of the result."""
        rows = sum(segment.rows for segment in self.segments)
        return rows // 2 if self.activation_kind else rows

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The result's columns, in order."""
        tensors = [(self._matrix(s), f"w{index}", s.rows) for index, s in enumerate(self.segments)]
        if self.activation_kind:
            (gate, w0, rows), (up, w1, up_rows) = tensors
            assert rows == up_rows, "gate and up have equal rows"
            return (Output(gate, w0, up, w1, rows),)
        return tuple(Output(matrix, weight, None, None, rows) for matrix, weight, rows in tensors)

    def _matrix(self, segment: Segment) -> Matrix:
        return Matrix(segment.format, self.in_features, self.compute, tiles_f32=self.tiles_f32)

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
    def finish(self) -> Finish:
        """The epilogue."""
        return Finish(self.activation_kind, self.bias, self.residual)

    @property
    def helpers(self) -> tuple[CpuHelper, ...]:
        """What is rendered before it."""
        return (*dict.fromkeys(self._matrix(segment) for segment in self.segments), self.finish)

    @property
    def count(self) -> str:
        """The batch's field that counts its rows."""
        return "rows" if self.gather else "tokens"

    @property
    def formula(self) -> str:
        """What it computes."""
        x = "x[logit_rows]" if self.gather else "x"
        x = f"rms_norm({x})" if self.norm else x
        bias = " + bias" if self.bias else ""
        y = f"{x} @ W.T{bias}"
        if self.activation_kind:
            y = f"{self.activation_kind}({x} @ w0.T{bias}) * ({x} @ w1.T{bias})"
        return f"{self.label}: out = {y}{' + residual' if self.residual else ''}"

    @property
    def buffer_table(self) -> str:
        """Its buffers, for the head of the function."""
        k, n = self.in_features, self.out_features
        rows = [f"x        [tokens, {k}] f32"]
        if self.norm:
            rows.append(f"norm     [{k}] f32")
        rows += [f"{f'w{i}':8} [{s.rows}, {k}] {s.format}" for i, s in enumerate(self.segments)]
        if self.bias:
            rows.append(f"bias     [{sum(s.rows for s in self.segments)}] f32")
        if self.residual:
            rows.append(f"residual [tokens, {n}] f32")
        rows.append(f"out      [{self.count}, {n}] f32")
        return "".join(f"//   {row}\n" for row in rows)

    @property
    def thread_bytes(self) -> int:
        """A row in f32; then a row in every form and 64 of bf16, or blocks of unpacked weights and sums that wait."""
        floats = round_up(self.in_features, 32)
        few = 3 * self._row_bytes + floats * _MOST_COLUMNS * 2
        tiles = -(-self.max_rows // _TILE_ROWS[0])
        many = _UNITS * (_UNIT_BYTES + tiles * _WAITING_BYTES)
        return floats * 4 + max(few, many)

    @property
    def shared_bytes(self) -> int:
        """All rows, and those of a tile past the last one, in each form that few rows may take."""
        forms = len({self._matrix(segment).form for segment in self.segments})
        return forms * (self.max_rows + _TILE_ROWS[1]) * self._row_bytes

    @property
    def _row_bytes(self) -> int:
        """Of the largest form."""
        return round_up(self.in_features, 32) * 4 + 64


@dataclass(frozen=True)
class CpuEmbed(CpuKernel):
    """out = table[token_ids], [tokens, hidden_size] f32.

    Attributes:
        layout: rows as in the file, or packed panels of a quantised format.
    """

    template = "embed.jinja"
    vocab_size: int
    hidden_size: int
    format: WeightFormat
    layout: Literal["rows", "packed"]

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

"""Contexts of the kernels that read weight matrices: projections of one row, of several and of many.

A launch may read several matrices as one, in different formats: its threadgroups are divided into spans, and a span's
outputs have their rows in one segment of the weight (gated: one for gates, one for ups).
"""

from dataclasses import KW_ONLY, dataclass
from itertools import groupby, pairwise
from typing import Literal

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.formats.weight_layout import Segment, WeightLayout
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.epilogue import Epilogue
from mlxr.compiler.targets.metal.kernels.formula import formula
from mlxr.compiler.targets.metal.kernels.kernel import SIMD_WIDTH, MetalKernel

PIECE = 16
"""Elements that a lane takes of a quantised row at once, whatever the format."""
_RUNS = {WeightFormat.Q4_0: 2, WeightFormat.Q4_K: 2, WeightFormat.Q5_K: 2, WeightFormat.Q6_K: 4}
"""Runs of a piece, as the formats' templates have them, where there are several and matrix instructions take them."""
GEMM_TILE, GEMM_ROWS, GEMM_SIMDGROUPS = 32, 64, 4
"""Of projections of many rows: rows of x and of the weight that a threadgroup multiplies, and its simdgroups."""
GEMM_COLUMNS = 32
"""Columns of both that it has in threadgroup memory at once."""
GEMM_MMA_TILE = 64
"""By matrix instructions: rows of x of a threadgroup."""
MMA_FORMATS = frozenset(_RUNS) | {format for format in WeightFormat if format.affine and format.affine.bits == 4}
"""Formats whose codes matrix instructions can take in one-row projections: see mma.jinja."""
MMA_ROWS = 16
"""Rows of the weight that such an instruction multiplies."""
GEMM_STRIDE = 36
"""Its rows' distance in threadgroup memory: whole float4s, and neighbouring rows in other banks."""


@dataclass(frozen=True)
class Group:
    """Rows of one format in a span: `sources` are segments, the first of them the rows of half `first` (0 or 1)."""

    format: WeightFormat
    first: int
    sources: tuple[Segment, ...]


@dataclass(frozen=True)
class Span:
    """Threadgroups [first, end) of a launch, which make outputs [first_out, end_out)."""

    first: int
    end: int
    first_out: int
    end_out: int
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Norm:
    """A norm of the rows of x."""

    kind: Literal["rms", "layer"]
    eps: float
    weight: DType
    bias: DType | None = None

    @property
    def ports(self) -> tuple[Port, ...]:
        """What it binds."""
        bias: tuple[Port, ...] = (("norm_bias", self.bias),) if self.bias else ()
        return (("norm", self.weight), *bias)


@dataclass(frozen=True)
class MatrixKernel(MetalKernel):
    """Base of the kernels that multiply by a weight matrix.

    Attributes:
        outs: outputs of a simdgroup.
        unroll: steps of its loop over columns whose loads are on the way at once.
        split: simdgroups of a threadgroup that share the columns of their outputs.
    """

    in_features: int
    out_features: int
    layout: WeightLayout
    activation: DType
    norm: Norm | None
    epilogue: Epilogue
    outs: int
    simdgroups: int
    _: KW_ONLY
    unroll: int = 1
    split: int = 1

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The result."""
        return (("out", self.epilogue.out),)

    @property
    def threads(self) -> int:
        """All simdgroups."""
        return self.simdgroups * SIMD_WIDTH

    @property
    def rows(self) -> int:
        """Weight rows of a simdgroup: twice its outputs when gate and up are both needed."""
        return self.outs * self.epilogue.halves

    @property
    def outs_per_threadgroup(self) -> int:
        """Outputs of a threadgroup."""
        return self.outs * self.simdgroups // self.split

    @property
    def matrix_rows(self) -> int:
        """Rows of each half of the weight."""
        return self.layout.rows // self.epilogue.halves

    @property
    def spans(self) -> tuple[Span, ...]:
        """The threadgroups' division."""
        size, halves = self.matrix_rows, range(self.epilogue.halves)
        borders = {segment.end_row - half * size for segment in self.layout.segments for half in halves}
        cuts = sorted({0, self.out_features} | (borders & set(range(self.out_features))))
        spans, first = [], 0
        for start, end in pairwise(cuts):
            found = [(half, self._segment(start + half * size)) for half in halves]
            groups = [
                Group(format, members[0][0], tuple(segment for _, segment in members))
                for format, iterator in groupby(found, key=lambda pair: pair[1].format)
                if (members := list(iterator))
            ]
            last = first + -(-(end - start) // self.outs_per_threadgroup)
            spans.append(Span(first, last, start, end, tuple(groups)))
            first = last
        return tuple(spans)

    def _segment(self, row: int) -> Segment:
        return next(s for s in self.layout.segments if s.first_row <= row < s.end_row)

    @property
    def threadgroups(self) -> int:
        """Threadgroups along the outputs."""
        return self.spans[-1].end

    @property
    def exact(self) -> bool:
        """Whether no simdgroup that reads has outputs past the end of its span; with `split` all of them read."""
        multiple = self.outs if self.split == 1 else self.outs_per_threadgroup
        return all((span.end_out - span.first_out) % multiple == 0 for span in self.spans)

    @property
    def read_dtypes(self) -> tuple[DType, ...]:
        """Types of x and of the norm's weight and bias."""
        norm = (self.norm.weight, self.norm.bias) if self.norm else ()
        return tuple(dict.fromkeys(d for d in (self.activation, *norm) if d))

    @property
    def reduces_scale(self) -> bool:
        """Whether 1 / rms is applied to finished sums: an RMS norm costs no pass of its own."""
        return self.norm is not None and self.norm.kind == "rms"

    @property
    def centred(self) -> bool:
        """Whether a layer norm's statistics are taken before the sums."""
        return self.norm is not None and self.norm.kind == "layer"

    def _matrix_table(self, x: str) -> list[str]:
        """The buffers of x, weight and norm, for the head of a kernel."""
        rows = [f"x          {x} {self.activation}", *self._weight_rows()]
        if self.norm:
            rows.append(f"norm       [{self.in_features}] {self.norm.weight}")
            if self.norm.bias:
                rows.append(f"norm_bias  [{self.in_features}] {self.norm.bias}")
        return rows

    def _table(self, count: str, *, gather: bool) -> str:
        """All buffers of a projection of `count` rows, for the head of a kernel."""
        e = self.epilogue
        rows = self._matrix_table(f"[tokens, {self.in_features}]")
        if e.bias:
            rows.append(f"bias       [{self.layout.rows}] {e.bias}")
        if e.residual:
            rows.append(f"residual   [tokens, {self.out_features}] {e.out}")
        if e.gate:
            rows.append(f"gate       [tokens, 1] {e.gate}")
        if gather:
            rows.append("rows       [rows] i32")
        rows.append(f"out        [{count}, {self.out_features}] {e.out}")
        return "".join(f"//   {row}\n" for row in rows)

    def _weight_rows(self) -> list[str]:
        layout = self.layout
        if layout.dtype is not DType.U8:
            return [f"weight     [{layout.rows}, {self.in_features}] {layout.dtype}"]
        rows = [f"weight     [{layout.size_bytes}] u8"]
        for s in layout.segments:
            places = ", ".join(str(offset) for offset in s.offsets)
            rows.append(
                f"  rows {s.first_row} to {s.end_row - 1}: [{s.rows}, {self.in_features}] {s.format} at byte {places}"
            )
        return rows


@dataclass(frozen=True)
class ProjectionKernel(MatrixKernel):
    """A projection of one row (`tile` 1), of several, or of many (`gemm`); `mma`: by matrix instructions.

    Of many rows by matrix instructions, x is normalised already: `norm` is None.
    """

    gather: bool
    tile: int
    gemm: bool = False
    mma: bool = False

    @property
    def template(self) -> str:
        """One row, several or many."""
        if self.gemm:
            return "gemm_mma.metal.jinja" if self.mma else "gemm.metal.jinja"
        if self.mma:
            return "matvec_mma.metal.jinja"
        return "matvec.metal.jinja" if self.tile == 1 else "matmul.metal.jinja"

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What the op binds, and the dims if rows are counted at run time."""
        ports: list[Port] = [("x", self.activation), ("weight", self.layout.dtype)]
        ports += self.norm.ports if self.norm else ()
        ports += self.epilogue.ports
        if self.gather:
            ports.append(("rows", DType.I32))
        if self.tile > 1:
            ports.append(("dims", DType.U32))
        return tuple(ports)

    @property
    def outs_per_threadgroup(self) -> int:
        """Outputs of a threadgroup; of many rows, all simdgroups share them."""
        return self.outs if self.gemm else super().outs_per_threadgroup

    @property
    def exact(self) -> bool:
        """See `MatrixKernel.exact`; matrix instructions need every simdgroup, so all of them read."""
        if not self.mma:
            return super().exact
        return all((span.end_out - span.first_out) % self.outs_per_threadgroup == 0 for span in self.spans)

    @property
    def threadgroup_bytes(self) -> int:
        """What the template declares.

        Of many rows: a tile of x, one of the weight, and two numbers of each row; of split columns: all sums; of
        matrix instructions: these, and what is staged of x.
        """
        if self.gemm and self.mma:
            return self.unroll * (self.tile + self.rows) * GEMM_COLUMNS * self.activation.size_bytes
        if self.mma:
            return self.simdgroups * (self.staged * 16 + (self.runs * 16 + self.sums) * 4)
        if self.gemm:
            return ((self.tile + self.rows) * GEMM_STRIDE + 2 * self.tile) * 4
        return self.simdgroups * self.sums * 4 if self.split > 1 else 0

    @property
    def sums(self) -> int:
        """What a simdgroup sums over its columns: the rows' products, and x^2 for the norm."""
        return self.rows + self.reduces_scale

    @property
    def staged(self) -> int:
        """Of matrix instructions: vectors of 16 bytes that a simdgroup stages."""
        return 16 * self.staged_row

    @property
    def staged_row(self) -> int:
        """Of them, one for each of four pairs of pieces and each part, and one of zeros."""
        return 4 * self.parts + 1

    @property
    def parts(self) -> int:
        """Of matrix instructions: f16 numbers whose sum is a number of x; numbers of 16 bits are one but for scale."""
        return 1 if self.norm is None and self.activation is not DType.F32 else 2

    @property
    def runs(self) -> int:
        """Of matrix instructions: most runs of a piece, each of which has a sum of x."""
        return max(_RUNS.get(format, 1) for format in self.layout.formats)

    @property
    def stride(self) -> int:
        """Of rows of the tiles, in elements."""
        return GEMM_STRIDE

    @property
    def count(self) -> str:
        """The dim that counts its rows."""
        return "rows" if self.gather else "tokens"

    @property
    def formula(self) -> str:
        """What it computes, for the head of the kernel."""
        x = "x[rows]" if self.gather else "x"
        return f"out = {formula(self.epilogue, f'{self.norm.kind}_norm({x})' if self.norm else x)}"

    @property
    def buffer_table(self) -> str:
        """The buffers, for the head of the kernel."""
        return self._table(self.count, gather=self.gather)

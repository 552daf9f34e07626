"""The base of the kernels that multiply by a weight matrix."""

from dataclasses import KW_ONLY, dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.formats.weight_layout import WeightLayout
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.epilogue import Epilogue
from mlxr.compiler.targets.metal.kernel_parts.fused_block import FusedBlock
from mlxr.compiler.targets.metal.kernel_parts.fused_norm import FusedNorm
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH, MetalKernel
from mlxr.compiler.targets.metal.kernel_parts.matrix_spans import Span, spans_of


@dataclass(frozen=True)
class MatrixKernel(MetalKernel):
    """Base of the kernels that multiply by a weight matrix.

    Attributes:
        in_features: columns of x and of the weight.
        out_features: outputs of a row of x.
        layout: where the rows of the weight lie, and in which formats.
        activation: element type of x.
        norm: the norm that the kernel applies to x; None: no norm.
        epilogue: the steps after the sums.
        outs: outputs per simdgroup.
        simdgroups: simdgroups per threadgroup.
        unroll: steps of the loop over columns whose loads are in flight at once.
        split: simdgroups of a threadgroup that share the columns of their outputs.
        passes: tiles of rows that a threadgroup takes one after the other, while lanes keep their columns of x; 0: it
            takes one tile, and lanes load x where they need it.
        added: what a block adds to x first; None: nothing. The kernel then reads x in threadgroup memory.
    """

    in_features: int
    out_features: int
    layout: WeightLayout
    activation: DType
    norm: FusedNorm | None
    epilogue: Epilogue
    outs: int
    simdgroups: int
    _: KW_ONLY
    unroll: int = 1
    split: int = 1
    passes: int = 0
    added: FusedBlock | None = None

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The result."""
        return (("out", self.epilogue.out),)

    @property
    def formats(self) -> tuple[WeightFormat, ...]:
        """Formats of all weights that the kernel reads, each once."""
        return self.layout.formats

    @property
    def threads(self) -> int:
        """Threads of all simdgroups."""
        return self.simdgroups * SIMD_WIDTH

    @property
    def rows(self) -> int:
        """Weight rows per simdgroup: twice its outputs in a gated projection."""
        return self.outs * self.epilogue.halves

    @property
    def sums(self) -> int:
        """Numbers that a simdgroup sums over its columns: the products of its rows, and x^2 for an RMS norm."""
        return self.rows + self.reduces_scale

    @property
    def tile_outs(self) -> int:
        """Outputs of a threadgroup in a pass."""
        return self.outs * self.simdgroups // self.split

    @property
    def outs_per_threadgroup(self) -> int:
        """Outputs of a threadgroup."""
        return self.tile_outs * max(1, self.passes)

    @property
    def piece(self) -> int:
        """Elements that a lane takes at once."""
        return 16 if self.layout.is_bytes else 16 // max(2, self.layout.dtype.size_bytes)

    def lane_steps(self, slots: int = 1) -> int:
        """Pieces that a lane takes of a row, or of as many rows as there are slots, one after the other."""
        return -(-slots * (self.in_features // self.piece) // (SIMD_WIDTH * self.split))

    @property
    def matrix_rows(self) -> int:
        """Rows of each half of the weight."""
        return self.layout.rows // self.epilogue.halves

    @property
    def spans(self) -> tuple[Span, ...]:
        """The division of the threadgroups among the segments of the weight."""
        return tuple(spans_of(self.layout, self.epilogue.halves, self.out_features, self.outs_per_threadgroup))

    @property
    def threadgroups(self) -> int:
        """Threadgroups along the outputs."""
        return self.spans[-1].end

    @property
    def exact(self) -> bool:
        """Whether no reading simdgroup has outputs past the end of its span; with `split` all simdgroups read."""
        return self._spans_are_multiples_of(self.outs if self.split == 1 else self.outs_per_threadgroup)

    def _spans_are_multiples_of(self, outputs: int) -> bool:
        return all((span.end_out - span.first_out) % outputs == 0 for span in self.spans)

    @property
    def x_loads(self) -> str:
        """The word for x in the names of its loads: its type, or `row` where it is in threadgroup memory."""
        return str(self.activation)

    @property
    def read_dtypes(self) -> tuple[DType, ...]:
        """Element types of x and of the norm's weight and bias, each once."""
        norm = (self.norm.weight, self.norm.bias) if self.norm else ()
        return tuple(dict.fromkeys(d for d in (self.activation, *norm) if d))

    @property
    def more_loads(self) -> tuple[tuple[str, int], ...]:
        """Other vector loads that the kernel needs: element types, and elements of a load."""
        return ()

    @property
    def reduces_scale(self) -> bool:
        """Whether 1 / rms is applied to finished sums, so that an RMS norm needs no pass over x of its own."""
        return self.norm is not None and self.norm.kind == "rms"

    @property
    def centred(self) -> bool:
        """Whether the kernel takes the statistics of a layer norm before it multiplies."""
        return self.norm is not None and self.norm.kind == "layer"

    def _matrix_table(self, x: str) -> list[str]:
        """The lines on x, weight and norm in the head of a kernel; `x` is x's shape."""
        rows = [f"x          {x} {self.activation}", *self._weight_rows()]
        if self.norm and self.norm.weight:
            rows.append(f"norm       [{self.in_features}] {self.norm.weight}")
        if self.norm and self.norm.bias:
            rows.append(f"norm_bias  [{self.in_features}] {self.norm.bias}")
        return rows

    def _weight_rows(self) -> list[str]:
        return self.rows_of("weight")

    def rows_of(self, port: str) -> list[str]:
        """The lines on its weight at a port, for the head of a kernel."""
        return self._rows_of(port, self.layout)

    @staticmethod
    def _rows_of(port: str, layout: WeightLayout) -> list[str]:
        if not layout.is_bytes:
            return [f"{port:10} [{layout.rows}, {layout.columns}] {layout.dtype}"]
        rows = [f"{port:10} [{layout.size_bytes}] u8"]
        for s in layout.segments:
            places = ", ".join(str(offset) for offset in s.offsets)
            rows.append(
                f"  rows {s.first_row} to {s.end_row - 1}: [{s.rows}, {layout.columns}] {s.format} at byte {places}"
            )
        return rows

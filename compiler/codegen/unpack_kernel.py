"""Context of the kernel that unpacks a quantised weight for MLX's matmul."""

from dataclasses import dataclass

from mlxr.compiler.codegen.kernels import Kernel, Port
from mlxr.compiler.codegen.projection_kernels import PIECE
from mlxr.compiler.dtypes import DType
from mlxr.compiler.formats import WeightFormat
from mlxr.compiler.weight_layout import Segment, WeightLayout


@dataclass(frozen=True)
class UnpackSpan:
    """Threadgroups [first, end) of a launch, which unpack one segment.

    Attributes:
        pieces: of the segment; row_pieces: of one of its rows.
        exact: whether they fill the threadgroups.
    """

    segment: Segment
    first: int
    end: int
    pieces: int
    row_pieces: int
    exact: bool


@dataclass(frozen=True)
class UnpackKernel(Kernel):
    """A whole weight as numbers of a 16-bit type, row by row.

    Attributes:
        unroll: pieces of a thread, whose loads are on the way at once.
    """

    template = "unpack.metal.jinja"
    layout: WeightLayout
    activation: DType
    unroll: int

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The weight."""
        return (("weight", self.layout.dtype),)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Its numbers."""
        return (("out", self.activation),)

    @property
    def threads(self) -> int:
        """Enough to fill a GPU with few threadgroups."""
        return 256

    @property
    def spans(self) -> tuple[UnpackSpan, ...]:
        """The threadgroups' division."""
        spans: list[UnpackSpan] = []
        for segment in self.layout.segments:
            row_pieces = self.layout.columns // _piece(segment.format)
            pieces, size = segment.rows * row_pieces, self.threads * self.unroll
            first = spans[-1].end if spans else 0
            spans.append(UnpackSpan(segment, first, first + -(-pieces // size), pieces, row_pieces, pieces % size == 0))
        return tuple(spans)

    @property
    def threadgroups(self) -> int:
        """All of them."""
        return self.spans[-1].end


def _piece(format: WeightFormat) -> int:
    """Elements that a thread takes at once: 16 bytes of floats (metal/formats has the same numbers)."""
    return PIECE if format.is_quantised else 16 // format.dtype.size_bytes

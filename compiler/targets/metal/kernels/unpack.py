"""Unpacks quantised weights for MLX's matmul."""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.formats.weight_layout import Segment, WeightLayout
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH, MetalKernel, piece_of

CHUNK = 8
"""Elements of a 16-bit type in 16 bytes; a thread stores 16 bytes at once."""


@dataclass(frozen=True)
class UnpackSpan:
    """Threadgroups [first, end) of a launch, which unpack one segment of a weight.

    Attributes:
        weight, out: the ports of the weight and of its numbers.
        layout: where the rows of the weight lie.
        segment: the segment.
        pieces: pieces of the segment, whose rows follow each other.
        piece: elements of a piece.
        exact: whether the pieces fill the threadgroups.
        tile_chunks: chunks of 16 bytes that a simdgroup makes at once.
        chunks, first_chunk: chunks of the segment, and the index of its first one in `out`.
    """

    weight: str
    out: str
    layout: WeightLayout
    segment: Segment
    first: int
    end: int
    pieces: int
    piece: int
    exact: bool
    tile_chunks: int
    chunks: int
    first_chunk: int


@dataclass(frozen=True)
class UnpackKernel(MetalKernel):
    """Unpacks whole weights to numbers of a 16-bit type, row by row.

    Attributes:
        layouts: where the rows of each weight lie.
        activation: the 16-bit type.
        unroll: pieces of a thread, whose loads are in flight at once.
    """

    template = "unpack.metal.jinja"
    layouts: tuple[WeightLayout, ...]
    activation: DType
    unroll: int

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The ports of the weights."""
        return tuple((self._port("weight", i), layout.dtype) for i, layout in enumerate(self.layouts))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The port of each weight's numbers."""
        return tuple((self._port("out", i), self.activation) for i in range(len(self.layouts)))

    def _port(self, name: str, index: int) -> str:
        return f"{name}_{index}" if len(self.layouts) > 1 else name

    @property
    def formats(self) -> tuple[WeightFormat, ...]:
        """The formats of the weights, each once, in order."""
        return tuple(dict.fromkeys(format for layout in self.layouts for format in layout.formats))

    @property
    def threads(self) -> int:
        """Enough to fill a GPU with few threadgroups."""
        return 256

    @property
    def simdgroups(self) -> int:
        """Simdgroups of a threadgroup."""
        return self.threads // SIMD_WIDTH

    @property
    def spans(self) -> tuple[UnpackSpan, ...]:
        """The division of the threadgroups: one weight after the other, segment by segment."""
        spans: list[UnpackSpan] = []
        size = self.threads * self.unroll
        parts = [(i, layout, segment) for i, layout in enumerate(self.layouts) for segment in layout.segments]
        for i, layout, segment in parts:
            piece = piece_of(segment.format)
            pieces = segment.rows * (layout.columns // piece)
            first = spans[-1].end if spans else 0
            spans.append(
                UnpackSpan(
                    self._port("weight", i),
                    self._port("out", i),
                    layout,
                    segment,
                    first,
                    end=first + -(-pieces // size),
                    pieces=pieces,
                    piece=piece,
                    exact=pieces % size == 0,
                    tile_chunks=SIMD_WIDTH * piece // CHUNK,
                    chunks=segment.rows * layout.columns // CHUNK,
                    first_chunk=segment.first_row * layout.columns // CHUNK,
                )
            )
        return tuple(spans)

    @property
    def tile_chunks(self) -> int:
        """Chunks of 16 bytes of the largest tile."""
        return max(span.tile_chunks for span in self.spans)

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of a tile for each simdgroup."""
        return 16 * self.simdgroups * self.tile_chunks

    @property
    def threadgroups(self) -> int:
        """Threadgroups of all spans."""
        return self.spans[-1].end

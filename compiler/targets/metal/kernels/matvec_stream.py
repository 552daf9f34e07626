"""Projections of one row with MMA, whose weights come through threadgroup memory."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.targets.metal.kernel_parts.kernel import BLOCK_BYTES, MMA_ROWS
from mlxr.compiler.targets.metal.kernel_parts.passes import bytes_of_sums, passes_of, tiles_of
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts
from mlxr.compiler.targets.metal.kernels.matvec_mma import MatvecMmaKernel

STREAM_FORMATS = frozenset({WeightFormat.Q4_K, WeightFormat.Q5_K, WeightFormat.Q6_K})
"""Formats of one plane of blocks, which the kernel can copy."""
_UNIT = 512
"""Columns that a simdgroup copies and multiplies at a time."""
_VECTOR = 16
_MANY_PASSES = 5


@dataclass(frozen=True)
class MatvecStreamKernel(MatvecMmaKernel):
    """A projection of one row with MMA: simdgroups copy what they will multiply to threadgroup memory.

    A threadgroup prepares all of x once, and takes `passes` tiles of rows.

    Attributes:
        stages: units of columns that a simdgroup has asked for and not multiplied yet.
        wanted_kib: KiB after these that are to come to the card's cache before x is there.
    """

    template = "matvec_stream.metal.jinja"
    most_bytes: ClassVar[int] = BLOCK_BYTES
    _: KW_ONLY
    stages: int
    wanted_kib: int = 0

    @property
    def asks_first(self) -> bool:
        """Whether x waits for the first pieces of the weight, as many tiles follow."""
        return self.passes >= _MANY_PASSES

    @property
    def residual_with_x(self) -> bool:
        """Whether a residual is asked for with x: each thread has one output at most."""
        return self.epilogue.residual and self.outs_per_threadgroup <= self.threads

    @property
    def units(self) -> int:
        """Units of columns."""
        return self.in_features // _UNIT

    @property
    def ring(self) -> int:
        """Vectors of 16 bytes of a simdgroup for what it has asked for."""
        return self.stages * self.rows * max(map(self.vectors_of, self.layout.formats))

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of what is asked for, of x and its sums, and of the sums of all tiles."""
        of_x = self.units * (self.staged * _VECTOR + (self.runs * 16 + 1) * 4)
        return self.simdgroups * self.ring * _VECTOR + of_x + bytes_of_sums(self)

    def row_bytes_of(self, format: WeightFormat) -> int:
        """Bytes of a row."""
        return self.in_features // format.block_elements * format.planes[0].block_bytes

    def unit_bytes_of(self, format: WeightFormat) -> int:
        """Bytes of a unit of a row."""
        return _UNIT // format.block_elements * format.planes[0].block_bytes

    def vectors_of(self, format: WeightFormat) -> int:
        """Vectors that have a unit of a row, which begins at a multiple of 4 bytes."""
        return -(-self.unit_bytes_of(format) // _VECTOR)

    def wanted_of(self, format: WeightFormat) -> list[tuple[int, int, int, int]]:
        """What is wanted: a threadgroup's tile, its first rows of each half, and the first byte and the bytes of each.

        Nothing where simdgroups have no equal shares, or these are no whole vectors.
        """
        part, per_tile = self.unit_bytes_of(format) * self.split, self.units // self.split
        if self.units % self.split or part % _VECTOR or self.row_bytes_of(format) % _VECTOR:
            return []
        found: list[tuple[int, int, int, int]] = []
        rows = self.wanted_kib * 1024 // (part * self.epilogue.halves)
        for step in range(self.stages, per_tile * self.passes):
            tile, at = divmod(step, per_tile)
            own = min(self.tile_outs, rows)
            if not own:
                break
            if found and found[-1][:2] == (tile, own):
                found[-1] = (*found[-1][:3], found[-1][3] + part)
            else:
                found.append((tile, own, at * part, part))
            rows -= own
        return found

    def aligned(self, format: WeightFormat) -> bool:
        """Whether a unit begins where a vector does."""
        return self.unit_bytes_of(format) % _VECTOR == 0


def streamed(p: ProjectionFacts, kernel: MatvecMmaKernel) -> MatvecMmaKernel:
    """The kernel with its weight through threadgroup memory, if it can; `matvec_stages` 0: as it is.

    It has fewer stages where threadgroup memory is full.
    """
    g = p.choice.geometry.one_row
    norms = p.norm is None or (p.norm.kind == "rms" and not p.norm.bias)
    if not g.stages or p.added or not norms or not set(p.layout.formats) <= STREAM_FORMATS or p.layout.columns % _UNIT:
        return kernel
    outs = max(MMA_ROWS, g.outputs) // p.epilogue.halves
    one = MatvecStreamKernel(**vars(replace(kernel, outs=outs, passes=1)), stages=g.stages, wanted_kib=g.wanted_kib)
    made = replace(one, passes=passes_of(tiles_of(one), g.threadgroups)) if g.threadgroups else one
    while made.threadgroup_bytes > BLOCK_BYTES and made.stages > 1:
        made = replace(made, stages=made.stages - 1)
    return made if _divides(made) and made.threadgroup_bytes <= BLOCK_BYTES else kernel


def _divides(kernel: MatvecStreamKernel) -> bool:
    """Whether spans are whole tiles of one format, segments whole vectors, and all simdgroups have columns."""
    spans = all(len(s.groups) == 1 and (s.end_out - s.first_out) % kernel.outs == 0 for s in kernel.spans)
    return (
        spans
        and kernel.split <= kernel.units
        and all(
            segment.offsets[0] % _VECTOR == 0 and segment.rows * kernel.row_bytes_of(segment.format) % _VECTOR == 0
            for segment in kernel.layout.segments
        )
    )

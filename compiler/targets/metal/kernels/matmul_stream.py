"""Projections of several rows with MMA by blocks of quantised weights, which come through threadgroup memory."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.targets.metal.kernel_parts.matrix_spans import Span
from mlxr.compiler.targets.metal.kernel_parts.passes import passes_of, tiles_of
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts
from mlxr.compiler.targets.metal.kernel_parts.projection_kernel import ProjectionKernel

NEAR_ROWS = {
    WeightFormat.Q4_K: 144,
    WeightFormat.Q5_K: 176,
    WeightFormat.Q6_K: 240,
    WeightFormat.Q8_0: 272,
    **{WeightFormat(f"affine4_g{group}_{scale}"): 160 for group in (32, 64, 128) for scale in ("f16", "bf16")},
}
"""Formats that the kernel can multiply: bytes of 256 columns of a row in threadgroup memory."""
_BYTES = 226 << 10
"""Threadgroup memory of a threadgroup on NVIDIA cards for data centres; a step kernel has less."""
_UNIT = 256
"""Columns that a simdgroup copies and multiplies at a time."""
_ROWS = 32
"""Rows of the weight that a simdgroup takes: each lane prepares the scales of one."""
_TABLE = 5
"""Vectors for the scales of a row: four, and what all of its sums are multiplied by."""
_VECTOR = 16
_AT_ONCE = 16
"""Rows of x whose sums are added up at once."""
_MOST_NORMED, _MOST_NORMED_COLUMNS = 16, 2048
"""Rows and columns of x up to which each threadgroup takes its norm: it takes 0.7 us less than a launch of its own, and
twice as many numbers of x are predicted to take as much more (experiment 73)."""
_TILES = (32, 16)
"""Rows of x that a threadgroup may take, at most."""


@dataclass(frozen=True)
class MatmulStreamKernel(ProjectionKernel):
    """A projection of `tile` rows. Of norms it has RMS norms, where threadgroups share no columns.

    A threadgroup prepares its columns of x once, as f16 numbers in threadgroup memory, and takes `passes` tiles of rows
    of the weight. Simdgroups copy what they will multiply, each on its own.

    Attributes:
        stages: units of columns that a simdgroup has asked for and not multiplied yet.
        together: threadgroups that share the columns of the same rows of the weight.
    """

    template = "matmul_stream.metal.jinja"
    most_bytes: ClassVar[int] = _BYTES
    _: KW_ONLY
    stages: int
    together: int

    @property
    def units(self) -> int:
        """Units of columns."""
        return self.in_features // _UNIT

    @property
    def most_units(self) -> int:
        """Units of a threadgroup, at most."""
        return -(-self.units // self.together)

    @property
    def even(self) -> bool:
        """Whether all simdgroups have equally many units."""
        return self.units % (self.together * self.split) == 0

    @property
    def groups(self) -> int:
        """Simdgroups with rows of their own."""
        return self.simdgroups // self.split

    @property
    def all_rows(self) -> int:
        """Rows of the weight that a threadgroup takes in a pass."""
        return self.groups * self.rows

    @property
    def at_once(self) -> int:
        """Rows of x whose sums are added up at once."""
        return min(self.tile, _AT_ONCE)

    @property
    def stride(self) -> int:
        """Numbers from the sums of one row of x to the next row's: two rows are 8 banks apart."""
        return self.rows + 4

    @property
    def ring(self) -> int:
        """Vectors of a unit of a simdgroup's rows."""
        return self.rows * max(NEAR_ROWS[format] for format in self.layout.formats) // _VECTOR

    @property
    def table(self) -> int:
        """Vectors for a simdgroup's scales, and for its sums later."""
        return self.rows * _TABLE

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of x, of what is asked for, of scales, and of sums."""
        x = self.most_units * _UNIT * 2 * self.tile
        own = self.simdgroups * (self.stages * self.ring + self.table) * _VECTOR
        sums = 2 * self.tile * (self.all_rows + 4) if self.together > 1 else 0
        return x + own + (sums + self.tile) * 4

    @property
    def cluster(self) -> int:
        """See `MetalKernel.cluster`."""
        return self.together

    @property
    def threadgroups(self) -> int:
        """Threadgroups along the outputs."""
        return self.spans[-1].end * self.together

    @property
    def most_planes(self) -> int:
        """Planes of a format, at most."""
        return max(len(format.planes) for format in self.layout.formats)

    def spans_of(self, format: WeightFormat) -> list[Span]:
        """The spans whose rows have a format."""
        return [span for span in self.spans if span.groups[0].format is format]

    def unit_bytes_of(self, format: WeightFormat, plane: int) -> int:
        """Bytes of a unit of a row of a plane."""
        return _UNIT // format.block_elements * format.planes[plane].block_bytes

    def row_bytes_of(self, format: WeightFormat, plane: int) -> int:
        """Bytes of a row of a plane."""
        return self.units * self.unit_bytes_of(format, plane)

    def aligned(self, format: WeightFormat, plane: int) -> bool:
        """Whether a unit begins where a vector does."""
        return self.unit_bytes_of(format, plane) % _VECTOR == 0


def streamed_rows(p: ProjectionFacts, tile: int) -> MatmulStreamKernel | None:
    """The kernel for so many rows; None: the geometry wants none, or it cannot be made.

    More than 32 rows take several tiles of 32, and of 16 where threadgroup memory has no room for more. The kernel has
    fewer stages where it is full.
    """
    g = p.many_rows.matrix
    if not g.stages or not g.threadgroups or p.deterministic or not p.activation.is_16_bit or not p.is_quantised:
        return None
    groups = g.outputs // _ROWS
    if not set(p.layout.formats) <= set(NEAR_ROWS) or p.layout.columns % _UNIT or not groups or g.simdgroups % groups:
        return None
    kernels = (_kernel(p, tile, own) for own in dict.fromkeys(min(tile, most) for most in _TILES))
    return next((kernel for kernel in kernels if kernel), None)


def _kernel(p: ProjectionFacts, tile: int, own: int) -> MatmulStreamKernel | None:
    """The kernel for `tile` rows of x, of which a threadgroup takes `own`; None: it cannot be made."""
    g = p.many_rows.matrix
    one = MatmulStreamKernel(
        label=f"{p.label}_mma{tile}",
        norm=p.norm if own <= _MOST_NORMED and g.together == 1 and _can_normalise(p) else None,
        **p.fields,
        outs=_ROWS // p.epilogue.halves,
        simdgroups=g.simdgroups,
        split=g.simdgroups // (g.outputs // _ROWS),
        tile=own,
        stages=g.stages,
        together=min(g.together, own),
        passes=1,
    )
    clusters = max(1, g.threadgroups * own // tile // one.together)
    made = replace(one, passes=passes_of(tiles_of(one) // one.together, clusters))
    while made.threadgroup_bytes > _BYTES and made.stages > 1:
        made = replace(made, stages=made.stages - 1)
    return made if made.threadgroup_bytes <= _BYTES and _divides(made) else None


def _can_normalise(p: ProjectionFacts) -> bool:
    """Whether the kernel can take the norm of x, and that takes it less time than a launch before it."""
    rms = p.norm is not None and p.norm.kind == "rms" and p.norm.bias is None
    return rms and p.layout.columns <= _MOST_NORMED_COLUMNS and not p.x_columns


def _divides(kernel: MatmulStreamKernel) -> bool:
    """Whether spans are whole tiles of one format, segments whole vectors, and all simdgroups have columns."""
    return (
        kernel.together * kernel.split <= kernel.units
        and all(len(s.groups) == 1 and (s.end_out - s.first_out) % kernel.outs == 0 for s in kernel.spans)
        and all(offset % _VECTOR == 0 for segment in kernel.layout.segments for offset in segment.offsets)
    )

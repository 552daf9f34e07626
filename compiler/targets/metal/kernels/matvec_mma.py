"""Projections of one row with MMA."""

from dataclasses import dataclass

from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.targets.metal.kernel_parts.kernel import MMA_ROWS
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts
from mlxr.compiler.targets.metal.kernel_parts.projection_kernel import ProjectionKernel

_RUNS = {WeightFormat.Q4_0: 2, WeightFormat.Q4_K: 2, WeightFormat.Q5_K: 2, WeightFormat.Q6_K: 4}
"""Runs per piece (see the templates of the formats), for the formats whose codes matrix instructions take."""
MMA_FORMATS = frozenset(_RUNS) | {format for format in WeightFormat if format.affine and format.affine.bits == 4}
"""Formats whose codes matrix instructions can take: see mma.jinja."""


@dataclass(frozen=True)
class MatvecMmaKernel(ProjectionKernel):
    """A projection of one row with MMA, directly on the codes of a quantised weight.

    Simdgroups put x into threadgroup memory as f16 numbers: 32 pieces of 16 elements at a time. They lie as 16 rows,
    four for each step of the matrix instructions, and a row has a vector of 16 bytes for each of the four pairs of
    pieces that a step multiplies.
    """

    template = "matvec_mma.metal.jinja"

    @property
    def exact(self) -> bool:
        """See `MatrixKernel.exact`: matrix instructions need the whole simdgroup, so all simdgroups read."""
        return self._spans_are_multiples_of(self.outs_per_threadgroup)

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of all simdgroups' sums, and of the numbers and sums of x that they put there."""
        return self.simdgroups * (self.staged * 16 + (self.runs * 16 + self.sums) * 4) + self.block_bytes

    @property
    def staged(self) -> int:
        """Vectors of 16 bytes of x that a simdgroup has in threadgroup memory."""
        return 16 * self.staged_row

    @property
    def staged_row(self) -> int:
        """Vectors per row: one for each part of each pair, and one of zeros for lanes of the other pairs' columns."""
        return 4 * self.parts + 1

    @property
    def parts(self) -> int:
        """f16 numbers whose sum is a number of x: one if x has 16 bits and no norm, otherwise two."""
        return 1 if self.norm is None and self.activation is not DType.F32 else 2

    @property
    def runs(self) -> int:
        """The most runs per piece; x has a sum for each run."""
        return max(_RUNS.get(format, 1) for format in self.layout.formats)


def matvec_mma(p: ProjectionFacts) -> MatvecMmaKernel:
    """The kernel of a projection.

    Raises:
        PlanError: matrix instructions cannot take the codes of the weight.
    """
    g = p.choice.geometry.one_row
    if not set(p.layout.formats) <= MMA_FORMATS:
        raise PlanError(
            f"geometry: matvec_mma is {g.mma} for {p.choice.site}, but matrix instructions take codes of "
            f"{', '.join(sorted(f for f in MMA_FORMATS if not f.affine))} and affine4_*; set it to 0 there"
        )
    return MatvecMmaKernel(
        label=p.label,
        norm=p.norm,
        added=p.added,
        **p.fields,
        x_columns=p.x_columns,
        outs=max(MMA_ROWS, g.outputs // p.epilogue.halves),
        simdgroups=g.simdgroups,
        unroll=g.unroll,
        split=g.split,
        tile=1,
    )

"""Projections of one row by digits, whose rows are copied tile after tile."""

from dataclasses import KW_ONLY, dataclass

from mlxr.compiler.targets.metal.kernel_parts.kernel import MMA_ROWS
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts
from mlxr.compiler.targets.metal.kernels.matvec_digits import UNIT, MatvecDigitsKernel, fits, in_digits


@dataclass(frozen=True)
class MatvecDigitsStreamKernel(MatvecDigitsKernel):
    """A projection of one row, of whose weight threadgroups copy some tiles ahead of what they multiply.

    Attributes:
        stages: tiles that a threadgroup has asked for and not multiplied yet.
    """

    template = "matvec_digits_stream.metal.jinja"
    _: KW_ONLY
    stages: int

    @property
    def held(self) -> int:
        """Rows of a unit that a lane holds: those of a tile."""
        return 2 * self.steps

    @property
    def numbers(self) -> int:
        """Numbers of a simdgroup in threadgroup memory: the digits of its x."""
        return self.steps * UNIT

    @property
    def near_bytes(self) -> int:
        """Bytes of threadgroup memory for rows."""
        return MMA_ROWS * self.stages * max(map(self.row_bytes_of, self.formats))

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of x, of all sums, and of rows."""
        return super().threadgroup_bytes + 64 * self.simdgroups * self.passes


def by_digits(p: ProjectionFacts) -> MatvecDigitsKernel | None:
    """The kernel of a projection, if it can be made; `matvec_stages` 0: it holds all that a threadgroup multiplies."""
    stages = p.choice.geometry.one_row.stages
    made = in_digits(p)
    if stages:
        made = (
            MatvecDigitsStreamKernel(**vars(kernel), stages=fewer) for kernel in made for fewer in range(stages, 0, -1)
        )
    return next((kernel for kernel in made if fits(kernel)), None)

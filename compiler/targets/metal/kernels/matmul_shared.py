"""Projections of several rows by few outputs, whose columns all simdgroups of a threadgroup share."""

from dataclasses import dataclass

from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts
from mlxr.compiler.targets.metal.kernel_parts.projection_kernel import ProjectionKernel

OUTS, ROWS = 4, 4
"""Outputs and rows of a threadgroup."""
MOST_ROWS = 64
"""Rows of a step up to which weights are read often enough."""
_MOST_HELD = 128
"""Numbers of x that a lane holds: with more, registers do not suffice, and with 224 of 7,168 columns by f32 weights all
arrays lie in local memory (NVIDIA's compiler for sm_90a)."""


@dataclass(frozen=True)
class MatmulSharedKernel(ProjectionKernel):
    """A projection of a tile of rows: each simdgroup has some columns, which it asks for all at once.

    The loads of a loop would wait for each other: few outputs make few simdgroups.
    """

    template = "matmul_shared.metal.jinja"

    @property
    def steps(self) -> int:
        """Pieces of a lane."""
        return self.lane_steps()

    @property
    def results(self) -> int:
        """Sums of a tile, and of the squares of its rows if they are normalised."""
        return self.tile * (self.outs + self.reduces_scale)

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the sums of all simdgroups."""
        return 4 * self.simdgroups * self.results


def matmul_shared(p: ProjectionFacts) -> MatmulSharedKernel | None:
    """The kernel of a projection; None: the geometry wants none, or it cannot be made."""
    simdgroups = p.many_rows.several.shared
    norms = p.norm is None or (p.norm.kind == "rms" and not p.norm.bias)
    if not simdgroups or p.added or not norms or p.is_quantised or p.epilogue.gated:
        return None
    made = MatmulSharedKernel(
        label=f"{p.label}_shared",
        norm=p.norm,
        **p.fields,
        x_columns=p.x_columns,
        outs=OUTS,
        simdgroups=simdgroups,
        split=simdgroups,
        tile=ROWS,
    )
    even = p.layout.columns % (made.piece * SIMD_WIDTH * simdgroups) == 0
    if ROWS * p.layout.columns > _MOST_HELD * SIMD_WIDTH * simdgroups:
        return None
    return made if even and len(made.spans) == 1 and len(made.spans[0].groups) == 1 else None

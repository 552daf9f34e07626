"""Projections of several rows."""

from dataclasses import dataclass

from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts
from mlxr.compiler.targets.metal.kernel_parts.projection_kernel import ProjectionKernel


@dataclass(frozen=True)
class MatmulKernel(ProjectionKernel):
    """A projection of several rows: a simdgroup reads each of its weights once for `tile` rows of x."""

    template = "matmul.metal.jinja"

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of what a block adds to x."""
        return self.block_bytes


def matmul(p: ProjectionFacts, most: int | None = None) -> MatmulKernel:
    """The kernel of a projection, with tiles of at most this many rows; None: as the geometry says."""
    g = p.many_rows.several
    return MatmulKernel(
        label=f"{p.label}_rows",
        norm=p.norm,
        added=p.added,
        **p.fields,
        x_columns=p.x_columns,
        outs=max(1, g.outputs // p.epilogue.halves),
        simdgroups=g.simdgroups,
        tile=min(g.tile, most or g.tile),
    )

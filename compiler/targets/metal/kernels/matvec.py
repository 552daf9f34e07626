"""Projections of one row."""

from dataclasses import dataclass

from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts
from mlxr.compiler.targets.metal.kernel_parts.projection_kernel import ProjectionKernel


@dataclass(frozen=True)
class MatvecKernel(ProjectionKernel):
    """A projection of one row: the lanes of a simdgroup share the columns of its weight rows."""

    template = "matvec.metal.jinja"

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the sums of simdgroups that share columns."""
        return (self.simdgroups * self.sums * 4 if self.split > 1 else 0) + self.block_bytes


def matvec(p: ProjectionFacts) -> MatvecKernel:
    """The kernel of a projection."""
    g = p.choice.geometry.one_row
    return MatvecKernel(
        label=p.label,
        norm=p.norm,
        added=p.added,
        **p.fields,
        x_columns=p.x_columns,
        outs=max(1, g.outputs // p.epilogue.halves),
        simdgroups=g.simdgroups,
        unroll=g.unroll,
        split=g.split,
        tile=1,
    )

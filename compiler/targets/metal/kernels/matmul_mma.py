"""Projections of several rows with MMA, by quantised or 16-bit weights."""

from dataclasses import dataclass

from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.targets.metal.kernel_parts.matrix_spans import Span
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts
from mlxr.compiler.targets.metal.kernel_parts.projection_kernel import ExpertRows, ProjectionKernel

MMA_TILES = (8, 16, 32, 64)
"""Rows of x that a threadgroup multiplies by its rows of the weight; each size has its own kernel."""
_MOST_ROWS = 64
"""Rows of a weight that a threadgroup multiplies, at most: registers have the sums of all."""
_COLUMNS, _QUANTISED_COLUMNS = 32, 64
"""Columns of a step; for a quantised weight, a piece of 16 elements for each of four lanes."""


@dataclass(frozen=True)
class MatmulMmaKernel(ProjectionKernel):
    """A projection of `tile` rows, one of MMA_TILES. x is already normalised, so `norm` is None.

    The simdgroups of a threadgroup have the same rows of x and of the weight, and share their columns.
    """

    template = "matmul_mma.metal.jinja"

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the sums that the simdgroups add up at once."""
        return self.simdgroups * self.columns * self.stride * 4

    @property
    def columns(self) -> int:
        """Rows of x whose sums are added up at once: those of one matrix instruction."""
        return 8

    @property
    def stride(self) -> int:
        """Numbers from the sums of one row of x to the next row's: two rows are 8 banks apart."""
        return self.rows + 4

    @property
    def steps(self) -> int:
        """Steps of all simdgroups together."""
        return self.in_features // (_QUANTISED_COLUMNS if self.quantised else _COLUMNS)

    @property
    def quantised(self) -> bool:
        """Whether the kernel unpacks its weights."""
        return self.layout.is_bytes

    @property
    def threadgroups(self) -> int:
        """Threadgroups along the outputs."""
        return super().threadgroups if self.quantised else -(-self.out_features // self.outs)

    @property
    def fits(self) -> bool:
        """Whether the kernel can be made: rows are whole steps, and quantised gates and ups have one format."""
        if not self.quantised:
            return self.in_features % _COLUMNS == 0 and self.out_features >= self.outs
        return (
            self.in_features % _QUANTISED_COLUMNS == 0
            and all(format.is_quantised for format in self.layout.formats)
            and all(len(span.groups) == 1 for span in self.spans)
        )

    def spans_of(self, format: WeightFormat) -> list[Span]:
        """The spans whose rows have a format."""
        return [span for span in self.spans if span.groups[0].format is format]


def matmul_mma(p: ProjectionFacts) -> tuple[MatmulMmaKernel, ...]:
    """The kernels of a projection, one for each of MMA_TILES; empty if matrix instructions cannot compute it.

    One kernel with a branch for every 8 rows did not issue its loads together: it took 305 us for 64 rows of gate and
    up of Llama-3-8B, and the kernel for 64 rows takes 138 (experiment 11 of benchmarks/NOTES-gpu.md).
    """
    kernels = tuple(_kernel(p, tile) for tile in MMA_TILES)
    of_one_type = p.activation.is_16_bit and (p.layout.is_bytes or p.layout.dtype is p.activation)
    return kernels if of_one_type and kernels[0].fits else ()


def expert_mma(p: ProjectionFacts, experts: ExpertRows) -> MatmulMmaKernel | None:
    """The kernel of a product by experts, of few choices of each; None: it cannot be made."""
    kernel = _kernel(p, MMA_TILES[0], experts)
    return kernel if p.activation.is_16_bit and p.is_quantised and kernel.fits else None


def _kernel(p: ProjectionFacts, tile: int, experts: ExpertRows | None = None) -> MatmulMmaKernel:
    g = p.many_rows.matrix
    return MatmulMmaKernel(
        label=f"{p.label}_mma{tile}",
        norm=None,
        **p.fields,
        outs=min(g.outputs, _MOST_ROWS) // p.epilogue.halves,
        simdgroups=g.simdgroups,
        split=g.simdgroups,
        tile=tile,
        experts=experts,
    )

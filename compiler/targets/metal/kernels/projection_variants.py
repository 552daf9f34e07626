"""The kernels that can make a projection, and which of them takes how many rows.

Rows are the tokens of a step, or those of its tokens whose logits are wanted. `variants_of` lists the kernels, and
`divided` gives each number of rows to one of them. Times in comments were measured on an H200 with Llama-3-8B (8B);
experiments are those of benchmarks/NOTES-gpu.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypedDict

from mlxr.compiler.artifact.launch import BatchDim
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_layout import WeightLayout
from mlxr.compiler.schedule.geometry import LibraryMatmul, ManyRows, MatrixTiles, OneRow, SeveralRows, UnpackedTiles
from mlxr.compiler.schedule.geometry_rules import Choice
from mlxr.compiler.schedule.size_record import SizeRecord
from mlxr.compiler.targets.epilogue import Epilogue
from mlxr.compiler.targets.metal.kernels.fused_norm import FusedNorm
from mlxr.compiler.targets.metal.kernels.gemm import GEMM_COLUMNS, GEMM_ROWS, GEMM_SIMDGROUPS, GEMM_TILE, GemmKernel
from mlxr.compiler.targets.metal.kernels.gemm_mma import GEMM_MMA_TILE, GemmMmaKernel
from mlxr.compiler.targets.metal.kernels.matmul import MatmulKernel
from mlxr.compiler.targets.metal.kernels.matmul_mma import MMA_TILE_ROWS, MMA_TILES, MatmulMmaKernel
from mlxr.compiler.targets.metal.kernels.matvec import MatvecKernel
from mlxr.compiler.targets.metal.kernels.matvec_mma import MMA_FORMATS, MMA_ROWS, MatvecMmaKernel
from mlxr.compiler.targets.metal.kernels.projection_kernel import ProjectionKernel


@dataclass(frozen=True)
class Projection:
    """What all kernels of one projection share.

    Attributes:
        label: the readable part of their names.
        out_features: columns of the result.
        layout: of the weight.
        activation: element type of x.
        norm: what is done to x before.
        epilogue: what is done to the sums after.
        gather: whether the input `rows` names the rows of x that count.
        one_row_alone: whether a single row has a kernel of its own: in decode, and for the logits of a prompt.
        dim: counts the rows.
        most_rows: of a step.
        choice: the geometry.
    """

    label: str
    out_features: int
    layout: WeightLayout
    activation: DType
    norm: FusedNorm | None
    epilogue: Epilogue
    gather: bool
    one_row_alone: bool
    dim: BatchDim
    most_rows: int
    choice: Choice

    @property
    def is_quantised(self) -> bool:
        """Whether the weight is."""
        return self.layout.dtype is DType.U8

    @property
    def is_tiled(self) -> bool:
        """Whether the weight is unpacked into threadgroup memory for many rows: its rows have whole tiles."""
        return self.is_quantised and self.layout.columns % GEMM_COLUMNS == 0

    @property
    def least_rows(self) -> int:
        """The fewest rows of the kernels for several rows."""
        return 2 if self.one_row_alone else 1

    @property
    def many_rows(self) -> ManyRows:
        """The geometry of more than one row."""
        return self.choice.geometry.many_rows

    @property
    def library_rows(self) -> int | None:
        """Rows from which MLX's matmul takes it, on hosts that have MLX's ops; None: it never does.

        MLX multiplies matrices of one type. f32 is no faster there than here, and less exact where it becomes TF32, so
        nothing is unpacked to it; nor are logits, whose weight is the largest and whose rows are few.
        """
        g, out = self.many_rows.library, self.epilogue.out
        minimum = 0
        if self.layout.dtype == self.activation == out:
            minimum = g.min_rows
        elif self.is_quantised and self.activation == out and out.is_16_bit and self.dim == "tokens":
            minimum = g.quantised_min_rows
        rows = max(minimum, self.least_rows)
        return rows if minimum and rows <= self.most_rows else None

    @property
    def library_size(self) -> str:
        """The flat name of the size that decides `library_rows`."""
        (name,) = LibraryMatmul.names("quantised_min_rows" if self.is_quantised else "min_rows")
        return name


@dataclass(frozen=True)
class Variant:
    """A kernel, and the rows that it takes.

    Attributes:
        kernel: what is launched.
        first, last: the fewest and the most rows.
        sizes: the records of the geometry that decide about it.
        unused: flat names of their sizes that mean nothing to it.
        normalises_before: whether a launch before it normalises x, which the kernel does not.
        yields: whether MLX's matmul replaces it from `Projection.library_rows` on.
    """

    kernel: ProjectionKernel
    first: int
    last: int
    sizes: tuple[type[SizeRecord], ...]
    unused: tuple[str, ...] = ()
    normalises_before: bool = False
    yields: bool = True


def variants_of(p: Projection) -> list[Variant]:
    """The kernels of a projection with the rows that each can take, the preferred ones first.

    Raises:
        PlanError: the geometry asks for a kernel that cannot be made.
    """
    g, most = p.many_rows, p.most_rows
    matrix_tiles = _matrix_tiles(p)
    decided_by: list[type[SizeRecord]] = [UnpackedTiles] if p.is_tiled else []
    decided_by += [MatrixTiles] if matrix_tiles else []
    unpacks = p.is_tiled and g.unpacked.min_rows <= most
    variants: list[Variant] = []
    if p.one_row_alone:
        # One row has no use for tiles. Logits of a prompt's last token took 503 us in bf16 and 618 in 4 bits by the
        # kernel for several rows; by this one they take 265 and 169 (experiment 6).
        unused = () if set(p.layout.formats) <= MMA_FORMATS else OneRow.names("mma")
        variants.append(Variant(_one_row(p), 1, 1, (OneRow,), unused))
    # Few rows by matrix instructions. By the kernel for several rows, gate and up took 128 us for 8 rows in bf16 and
    # 261 us for 16 rows in 4 bits; by these they take 67 (experiment 11) and 44 (31). MLX's matmul does not replace
    # them, since a call of it costs the CPU 30 to 70 us (11).
    variants += matrix_tiles
    if unpacks and g.unpacked.mma and p.activation.is_16_bit:
        # Many rows by matrix instructions: 2.2 to 3 times as fast as the next variant with 20 and 47 rows; down took
        # 589 us and takes 206 (21). It ends where MLX's matmul begins: x is normalised by a launch before it, which
        # hosts with MLX's ops would run for nothing.
        last = most if p.library_rows is None else p.library_rows - 1
        variants.append(Variant(_unpacked_mma(p), g.unpacked.min_rows, last, tuple(decided_by), normalises_before=True))
    if unpacks:
        # Many rows for f32 activations and for chips without matrix instructions. A weight is unpacked once for 32 rows
        # instead of once for `matmul_tile` rows; the gain was not recorded.
        variants.append(Variant(_unpacked(p), g.unpacked.min_rows, most, tuple(decided_by)))
    # All rows that are left, by a kernel that takes every weight and type: a weight is read once for `matmul_tile` rows
    # instead of once for each; the gain was not recorded.
    variants.append(Variant(_several(p), 1, most, (SeveralRows, *decided_by)))
    return variants


def divided(variants: Sequence[Variant], most_rows: int) -> list[Variant]:
    """Gives each number of rows, 1 to `most_rows`, to the first variant that takes it.

    Returns:
        The variants with the rows that they got, in order of rows. One that others interrupt is there twice.
    """
    free = [(1, most_rows)]
    taken: list[Variant] = []
    for variant in variants:
        left: list[tuple[int, int]] = []
        for low, high in free:
            first, last = max(low, variant.first), min(high, variant.last)
            if first <= last:
                taken.append(replace(variant, first=first, last=last))
                left += [(low, first - 1), (last + 1, high)]
            else:
                left.append((low, high))
        free = [(low, high) for low, high in left if low <= high]
    return sorted(taken, key=lambda variant: variant.first)


def _one_row(p: Projection) -> ProjectionKernel:
    """By matrix instructions, where the table says so: gate and up of 8B 33 -> 27.5 us in 4 bits (experiment 8)."""
    g = p.choice.geometry.one_row
    if g.mma and not set(p.layout.formats) <= MMA_FORMATS:
        raise PlanError(
            f"geometry: matvec_mma is 1 for {p.choice.site}, but matrix instructions take codes of "
            f"{', '.join(sorted(f for f in MMA_FORMATS if not f.affine))} and affine4_*; set it to 0 there"
        )
    kernel = MatvecMmaKernel if g.mma else MatvecKernel
    return kernel(
        label=p.label,
        norm=p.norm,
        **_fields(p),
        outs=max(MMA_ROWS if g.mma else 1, g.outputs // p.epilogue.halves),
        simdgroups=g.simdgroups,
        unroll=g.unroll,
        split=g.split,
        tile=1,
    )


def _matrix_tiles(p: Projection) -> list[Variant]:
    """A kernel for each of 8, 16, 32 and 64 rows.

    One kernel with a branch for every 8 rows did not issue its loads together: 305 us for 64 rows of gate and up of 8B,
    where the kernel for 64 takes 138 (experiment 11).
    """
    g = p.many_rows.matrix
    first, last = max(p.least_rows, g.min_rows), min(p.most_rows, g.max_rows)
    kernel = MatmulMmaKernel(
        label="",
        norm=None,
        **_fields(p),
        outs=(g.outputs if p.is_quantised else MMA_TILE_ROWS) // p.epilogue.halves,
        simdgroups=g.simdgroups,
        split=g.simdgroups,
        tile=0,
    )
    of_one_type = p.activation.is_16_bit and p.layout.dtype in (p.activation, DType.U8)
    if not g.min_rows or first > last or not of_one_type or not kernel.fits:
        return []
    # More rows than the largest tile are several tiles of it.
    most = (*MMA_TILES[:-1], max(last, MMA_TILES[-1]))
    return [
        Variant(
            replace(kernel, label=f"{p.label}_mma{tile}", tile=tile),
            max(first, below + 1),
            min(last, up_to),
            (MatrixTiles,),
            normalises_before=True,
            yields=False,
        )
        for tile, (below, up_to) in zip(MMA_TILES, pairwise((0, *most)), strict=True)
    ]


def _unpacked(p: Projection) -> ProjectionKernel:
    return GemmKernel(
        label=f"{p.label}_gemm",
        norm=p.norm,
        **_fields(p),
        outs=GEMM_ROWS // p.epilogue.halves,
        simdgroups=GEMM_SIMDGROUPS,
        tile=GEMM_TILE,
    )


def _unpacked_mma(p: Projection) -> ProjectionKernel:
    """As many columns at once as divide a row, 32 to 128: their loads are in flight together."""
    return GemmMmaKernel(
        label=f"{p.label}_gemm_mma",
        norm=None,
        **_fields(p),
        outs=GEMM_ROWS // p.epilogue.halves,
        simdgroups=GEMM_SIMDGROUPS,
        unroll=next(n for n in (4, 2, 1) if p.layout.columns % (n * GEMM_COLUMNS) == 0),
        tile=GEMM_MMA_TILE,
    )


def _several(p: Projection) -> ProjectionKernel:
    g = p.many_rows.several
    return MatmulKernel(
        label=f"{p.label}_rows",
        norm=p.norm,
        **_fields(p),
        outs=max(1, g.outputs // p.epilogue.halves),
        simdgroups=g.simdgroups,
        tile=g.tile,
    )


class _Fields(TypedDict):
    """Fields that all kernels of a projection have alike."""

    in_features: int
    out_features: int
    layout: WeightLayout
    activation: DType
    epilogue: Epilogue
    gather: bool


def _fields(p: Projection) -> _Fields:
    return {
        "in_features": p.layout.columns,
        "out_features": p.out_features,
        "layout": p.layout,
        "activation": p.activation,
        "epilogue": p.epilogue,
        "gather": p.gather,
    }

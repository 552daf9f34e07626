"""The kernels that can compute a projection, and the numbers of rows that each takes.

Rows are the tokens of a step, or those of its tokens whose logits are wanted. `variants_of` lists the kernels, and
`divided` gives each number of rows to one of them. Times in comments were measured on an H200 with Llama-3-8B (8B);
experiments are those of benchmarks/NOTES-gpu.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from mlxr.compiler.schedule.geometry import BY_DIGITS, MatrixTiles, OneRow, SeveralRows, UnpackedTiles
from mlxr.compiler.schedule.size_record import SizeRecord
from mlxr.compiler.targets.metal.kernel_parts.kernel import THREADGROUP_BYTES
from mlxr.compiler.targets.metal.kernel_parts.passes import keeps_columns
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts
from mlxr.compiler.targets.metal.kernel_parts.projection_kernel import ProjectionKernel
from mlxr.compiler.targets.metal.kernels.gemm import can_tile, gemm
from mlxr.compiler.targets.metal.kernels.gemm_mma import gemm_mma
from mlxr.compiler.targets.metal.kernels.matmul import MatmulKernel, matmul
from mlxr.compiler.targets.metal.kernels.matmul_mma import MMA_TILES, matmul_mma
from mlxr.compiler.targets.metal.kernels.matmul_shared import MOST_ROWS, matmul_shared
from mlxr.compiler.targets.metal.kernels.matmul_stages import staged
from mlxr.compiler.targets.metal.kernels.matmul_stream import streamed_rows
from mlxr.compiler.targets.metal.kernels.matmul_wide import wide
from mlxr.compiler.targets.metal.kernels.matvec import matvec
from mlxr.compiler.targets.metal.kernels.matvec_digits_stream import by_digits
from mlxr.compiler.targets.metal.kernels.matvec_mma import MMA_FORMATS, matvec_mma
from mlxr.compiler.targets.metal.kernels.matvec_passes import in_passes
from mlxr.compiler.targets.metal.kernels.matvec_stream import MatvecStreamKernel, streamed

LEADER = "o"
"""The projection whose launch may let in the next one early: that one reads only weights before it waits (88)."""


@dataclass(frozen=True)
class ProjectionVariant:
    """A kernel, and the rows that it takes.

    Attributes:
        kernel: the kernel.
        first, last: the fewest and the most rows.
        sizes: the geometry records that decide about the kernel and its rows.
        unused: flat names of sizes in these records that have no effect on the kernel.
        normalises_before: whether an earlier launch normalises x, because the kernel does not.
        yields: whether MLX's matmul replaces it from `ProjectionFacts.library_rows` on.
    """

    kernel: ProjectionKernel
    first: int
    last: int
    sizes: tuple[type[SizeRecord], ...]
    unused: tuple[str, ...] = ()
    normalises_before: bool = False
    yields: bool = True


def variants_of(p: ProjectionFacts) -> list[ProjectionVariant]:
    """The kernels of a projection with the rows that each can take, in order of preference.

    Raises:
        PlanError: the geometry asks for a kernel that cannot be made.
    """
    if p.deterministic:
        return _same_arithmetic(p)
    g, most = p.many_rows, p.most_rows
    mma_tiles = _mma_tiles(p)
    decided_by: list[type[SizeRecord]] = [UnpackedTiles] if can_tile(p) else []
    decided_by += [MatrixTiles] if mma_tiles else []
    unpacks = can_tile(p) and g.unpacked.min_rows <= most
    variants: list[ProjectionVariant] = []
    if p.one_row_alone:
        # One row has no use for tiles. Logits of a prompt's last token took 503 us in bf16 and 618 in 4 bits by the
        # kernel for several rows; by this one they take 265 and 169 (experiment 6). Matrix instructions help large
        # weights of 4 bits: gate and up 33 -> 27.5 us (8).
        sizes = p.choice.geometry.one_row
        digits = by_digits(p.alone) if sizes.mma == BY_DIGITS else None
        one_row = digits or _of_one_row(p.alone)
        unused = () if set(p.layout.formats) <= MMA_FORMATS else OneRow.names("mma")
        copies = digits is not None or isinstance(one_row, MatvecStreamKernel)
        takes_tiles = copies or (not sizes.mma and keeps_columns(one_row))
        unused += () if takes_tiles else OneRow.names("threadgroups")
        unused += () if copies else OneRow.names("stages")
        unused += () if isinstance(one_row, MatvecStreamKernel) else OneRow.names("wanted_kib")
        one_row = replace(one_row, leads=bool(sizes.leads) and p.label == LEADER)
        unused += () if p.label == LEADER else OneRow.names("leads")
        variants.append(ProjectionVariant(one_row, 1, 1, (OneRow,), unused))
    # Few rows by matrix instructions. By the kernel for several rows, gate and up took 128 us for 8 rows in bf16 and
    # 261 us for 16 rows in 4 bits; by these they take 67 (experiment 11) and 44 (31). MLX's matmul does not replace
    # them, since a call of it costs the CPU 30 to 70 us (11).
    variants += mma_tiles
    if (shared := matmul_shared(p)) is not None:
        # A router of 16 rows took 9 us by the last variant (73).
        variants.append(ProjectionVariant(shared, 2, min(most, MOST_ROWS), (SeveralRows, *decided_by)))
    if unpacks and g.unpacked.mma and p.activation.is_16_bit:
        # Many rows by matrix instructions: 2.2 to 3 times as fast as the next variant with 20 and 47 rows; down took
        # 589 us and takes 206 (21). It ends where MLX's matmul begins: hosts that have it would normalise x for nothing
        # by the launch before.
        last = most if p.library_rows is None else p.library_rows - 1
        variants.append(
            ProjectionVariant(gemm_mma(p), g.unpacked.min_rows, last, tuple(decided_by), normalises_before=True)
        )
    if unpacks:
        # Many rows for f32 activations and for chips without matrix instructions: unpacks a weight once for 32 rows,
        # where the last variant does so for each `matmul_tile` rows; the gain was not recorded.
        variants.append(ProjectionVariant(gemm(p), g.unpacked.min_rows, most, tuple(decided_by)))
    # All other rows, by a kernel that takes every weight and type: reads a weight once for `matmul_tile` rows instead
    # of once for each; the gain was not recorded.
    variants.append(ProjectionVariant(matmul(p), 1, most, (SeveralRows, *decided_by)))
    return variants


def _of_one_row(p: ProjectionFacts) -> ProjectionKernel:
    """The kernel of one row, not by digits."""
    sizes = p.choice.geometry.one_row
    if not sizes.mma:
        return in_passes(matvec(p), sizes.threadgroups)
    if sizes.mma == BY_DIGITS:  # with sizes that are for digits
        sizes = replace(sizes, mma=1, simdgroups=min(sizes.simdgroups, 4), split=min(sizes.simdgroups, 4), stages=0)
        p = replace(p, choice=replace(p.choice, geometry=replace(p.choice.geometry, one_row=sizes)))
    return streamed(p, matvec_mma(p))


def divided(variants: Sequence[ProjectionVariant], most_rows: int) -> list[ProjectionVariant]:
    """Gives each number of rows, 1 to `most_rows`, to the first variant that takes it.

    Returns:
        The variants with their rows, in order of rows. A variant that others interrupt occurs twice.
    """
    free = [(1, most_rows)]
    taken: list[ProjectionVariant] = []
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


def of_several(p: ProjectionFacts) -> tuple[MatmulKernel, int] | None:
    """The kernel for several rows, and the most rows that it takes, if it takes two of them.

    None where others are better for two rows already: those with matrix instructions, or MLX's matmul.
    """
    two = next(v for v in divided(variants_of(p), p.most_rows) if v.first <= 2 <= v.last)
    most = min(two.last, p.most_rows if p.library_rows is None else p.library_rows - 1)
    return (two.kernel, most) if isinstance(two.kernel, MatmulKernel) and most > 1 else None


def with_block(variant: ProjectionVariant, p: ProjectionFacts) -> ProjectionVariant:
    """The variant, whose kernel adds what a block adds to x only where it can.

    It cannot if threadgroup memory has no room for its rows, or MLX's matmul, which reads the sum, may replace it.
    """
    kernel = variant.kernel
    replaced = variant.yields and p.library_rows is not None and p.library_rows <= variant.last
    aligned = kernel.in_features * kernel.activation.size_bytes % 16 == 0
    if kernel.added is None or (aligned and not replaced and kernel.threadgroup_bytes <= THREADGROUP_BYTES):
        return variant
    return replace(variant, kernel=replace(kernel, added=None))


def _same_arithmetic(p: ProjectionFacts) -> list[ProjectionVariant]:
    """Kernels that differ only in the number of rows that share a read of the weight: a row's sums have one order.

    A row alone is multiplied by the kernel for two, whose other row is empty.
    """
    two, several = matmul(p, most=2), matmul(p)
    return _mma_tiles(p) or [
        ProjectionVariant(two, 1, 2, (SeveralRows,)),
        ProjectionVariant(several, 3, p.most_rows, (SeveralRows,)),
    ]


def _mma_tiles(p: ProjectionFacts) -> list[ProjectionVariant]:
    """A variant for each MMA kernel, with the rows that the geometry gives it; all rows if they are deterministic."""
    g, kernels = p.many_rows.matrix, matmul_mma(p)
    first, last = max(p.least_rows, g.min_rows), min(p.most_rows, g.max_rows)
    if p.deterministic:
        first, last = 1, p.most_rows
    if not g.min_rows or first > last or not kernels:
        return []
    # Rows that were chosen before are of one layer and the logits: one kernel is enough, and fewer are compiled.
    tiles = MMA_TILES if p.gather or p.dim == "tokens" else MMA_TILES[1:2]
    # More rows than the largest tile take several of the largest tiles.
    most = (*tiles[:-1], max(last, tiles[-1]))
    kernels = tuple(kernel for kernel in kernels if kernel.tile in tiles)
    return [
        ProjectionVariant(
            best := wide(p, kernel.tile) or staged(p, kernel.tile) or streamed_rows(p, kernel.tile) or kernel,
            max(first, below + 1),
            min(last, up_to),
            (MatrixTiles,),
            normalises_before=best.norm is None,
            yields=False,
        )
        for kernel, (below, up_to) in zip(kernels, pairwise((0, *most)), strict=True)
    ]

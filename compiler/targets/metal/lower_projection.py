"""Lowers projections: which kernels make one, by how many rows, and when MLX's matmul does."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

from mlxr.compiler.artifact.launch import BatchDim, Condition, Extent
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_layout import WeightLayout
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import OpKind
from mlxr.compiler.ir.ops.linear import Linear, Projection
from mlxr.compiler.schedule.draft import ONE, Drafting, Scratch
from mlxr.compiler.schedule.geometry import MatrixTiles, OneRow, SeveralRows, UnpackedTiles
from mlxr.compiler.schedule.geometry_rules import Choice
from mlxr.compiler.schedule.size_record import SizeRecord
from mlxr.compiler.targets.metal.epilogue import epilogue_of, norm_of
from mlxr.compiler.targets.metal.kernels.mma_kernels import MMA_TILE_ROWS, MMA_TILES, MatmulMmaKernel
from mlxr.compiler.targets.metal.kernels.projection_kernels import (
    GEMM_COLUMNS,
    GEMM_MMA_TILE,
    GEMM_ROWS,
    GEMM_SIMDGROUPS,
    GEMM_TILE,
    MMA_FORMATS,
    MMA_ROWS,
    Norm,
    ProjectionKernel,
)
from mlxr.compiler.targets.metal.kernels.row_kernels import NormKernel
from mlxr.compiler.targets.metal.kernels.unpack_kernel import UnpackKernel

_Range = tuple[ProjectionKernel | MatmulMmaKernel, int, int]
"""A kernel, and the fewest and the most rows that it takes."""


class ProjectionLowering:
    """The rules of projections; launches go to a `Drafting`.

    Attributes:
        layouts: of the weights, by name.
        limits: the largest batch.
    """

    def __init__(self, drafting: Drafting, layouts: Mapping[str, WeightLayout], limits: Mapping[str, int]) -> None:
        self._to = drafting
        self.layouts = layouts
        self.limits = limits

    @property
    def rules(self) -> Mapping[type[OpKind], Callable[[Op], None]]:
        """The rule of each op kind."""
        return {Linear: self._projection, Projection: self._projection}

    def _projection(self, op: Op) -> None:
        gather = "rows" in op.inputs
        dim: BatchDim = "rows" if gather else "tokens"
        layout, epilogue = self.layouts[op.inputs["weight"]], epilogue_of(self._to, op)
        out_features = self._to.graph.value(op.out).shape[1]
        assert isinstance(out_features, int), "weights have no symbolic dims"
        label = "logits" if op.out in self._to.graph.outputs else op.inputs["weight"].rpartition(".")[2]
        choice = self._to.table.choose(Site.of_weight(label, layout))
        one_row, many_rows = choice.geometry.one_row, choice.geometry.many_rows
        one = ProjectionKernel(
            label=label,
            in_features=layout.columns,
            out_features=out_features,
            layout=layout,
            activation=self._to.value(op, "x").dtype,
            norm=norm_of(self._to, op),
            epilogue=epilogue,
            outs=max(MMA_ROWS if one_row.mma else 1, one_row.outputs // epilogue.halves),
            simdgroups=one_row.simdgroups,
            unroll=one_row.unroll,
            split=one_row.split,
            gather=gather,
            tile=1,
            mma=bool(one_row.mma),
        )
        by_codes = set(layout.formats) <= MMA_FORMATS
        if one.mma and not by_codes:
            raise PlanError(
                f"geometry: matvec_mma is 1 for {choice.site}, but matrix instructions take codes of "
                f"{', '.join(sorted(f for f in MMA_FORMATS if not f.affine))} and affine4_*; set it to 0 there"
            )
        several = replace(
            one,
            label=f"{label}_rows",
            outs=max(1, many_rows.several.outputs // epilogue.halves),
            simdgroups=many_rows.several.simdgroups,
            unroll=1,
            split=1,
            tile=many_rows.several.tile,
            mma=False,
        )
        many = replace(
            one,
            label=f"{label}_gemm",
            outs=GEMM_ROWS // epilogue.halves,
            simdgroups=GEMM_SIMDGROUPS,
            unroll=1,
            split=1,
            tile=GEMM_TILE,
            gemm=True,
            mma=False,
        )
        at_once = next(n for n in (4, 2, 1) if layout.columns % (n * GEMM_COLUMNS) == 0 or n == 1)
        by_mma = {"label": f"{label}_gemm_mma", "tile": GEMM_MMA_TILE, "mma": True, "norm": None, "unroll": at_once}
        many_mma = replace(many, **by_mma)  # type: ignore[arg-type]
        buffers = {"out": op.out, "dims": "dims"}
        least, most = 1, self.limits[dim]
        if self._to.step == "decode" or gather:
            when = Condition(dim=dim, maximum=1) if most > 1 else None
            # A prompt's chunk has one row of logits, or none.
            counted = Extent(times=one.threadgroups, dim=None if self._to.step == "decode" else dim)
            chosen = choice.sizes(OneRow, without=() if by_codes else OneRow.names("mma"))
            self._to.emit(op, one, (counted,), buffers, when=when, chosen=chosen)
            least = 2
        tiled = layout.dtype is DType.U8 and layout.columns % GEMM_COLUMNS == 0
        several_most = many_rows.unpacked.min_rows - 1 if tiled and most >= many_rows.unpacked.min_rows else most
        mlx, mlx_inputs = self._for_mlx(op, one, dim, least, choice)
        # What MLX takes is not normalised before, so that other kernels stand for its rows.
        mma_most = (
            0 if not (many_rows.unpacked.mma and one.activation.is_16_bit) else mlx[0].minimum - 1 if mlx else most
        )
        many_least = max(least, several_most + 1)
        ranges: list[_Range] = [
            (several, least, several_most),
            (many_mma, many_least, mma_most),
            (many, max(many_least, mma_most + 1), most),
        ]
        by_matrix, ranges = self._by_matrix(op, one, ranges, choice)
        for kernel, low, high in ranges:
            # Alone, a kernel takes any number of rows.
            when = None
            if low > 1 or high < most:
                when = Condition(dim=dim, minimum=low if low > 1 else 0, maximum=None if high == most else high)
            grid = (Extent(times=kernel.threadgroups), Extent(dim=dim, per=kernel.tile))
            by_matrices = isinstance(kernel, MatmulMmaKernel) or kernel.mma
            x = self._normalised(op, one.norm, kernel.tile, when, choice) if by_matrices else op.inputs["x"]
            if isinstance(kernel, MatmulMmaKernel):
                self._to.emit(op, kernel, grid, buffers | {"x": x}, when=when, chosen=choice.sizes(MatrixTiles))
                continue
            reached = mlx if mlx and mlx[0].minimum <= high else ()
            parts: list[type[SizeRecord] | str] = [] if kernel.gemm else [SeveralRows]
            parts += [UnpackedTiles] if tiled else []
            parts += [MatrixTiles] if by_matrix else []
            parts += [f"mlx_{'quantised_' if layout.dtype is DType.U8 else ''}min_rows"] if reached else []
            self._to.emit(
                op,
                kernel,
                grid,
                buffers | {"x": x},
                when=when,
                mlx=reached,
                mlx_inputs=mlx_inputs if reached else (),
                chosen=choice.sizes(*parts),
            )

    def _by_matrix(
        self, op: Op, kernel: ProjectionKernel, ranges: list[_Range], choice: Choice
    ) -> tuple[bool, list[_Range]]:
        """Kernels and the rows that each takes, with matrix instructions for some of these where they can be."""
        g, layout, dtype = choice.geometry.many_rows.matrix, kernel.layout, kernel.activation
        one = MatmulMmaKernel(
            label="",
            in_features=kernel.in_features,
            out_features=kernel.out_features,
            layout=layout,
            activation=dtype,
            norm=None,
            epilogue=kernel.epilogue,
            outs=(g.outputs if layout.dtype is DType.U8 else MMA_TILE_ROWS) // kernel.epilogue.halves,
            simdgroups=g.simdgroups,
            split=g.simdgroups,
            gather=kernel.gather,
            tile=0,
        )
        ranges = [cut for cut in ranges if cut[1] <= cut[2]]
        first = max(ranges[0][1], g.min_rows) if ranges else 1
        last = min(ranges[-1][2], g.max_rows) if ranges else 0
        of_one_type = dtype.is_16_bit and layout.dtype in (dtype, DType.U8)
        if not g.min_rows or first > last or not of_one_type or not one.fits:
            return False, ranges
        below: list[_Range] = [(other, low, min(high, first - 1)) for other, low, high in ranges]
        above: list[_Range] = [(other, max(low, last + 1), high) for other, low, high in ranges]
        within: list[_Range] = [
            (replace(one, label=f"{kernel.label}_mma{tile}", tile=tile), max(first, less + 1), min(last, tile))
            for less, tile in pairwise((0, *MMA_TILES))
        ]
        if last > MMA_TILES[-1]:
            within[-1] = (within[-1][0], within[-1][1], last)
        return True, [cut for cut in (*below, *within, *above) if cut[1] <= cut[2]]

    def _normalised(self, op: Op, norm: Norm | None, tile: int, when: Condition | None, choice: Choice) -> str:
        """The buffer of a projection's x after its norm, for which there is a launch under the same condition."""
        x = self._to.value(op, "x")
        if norm is None:
            return op.inputs["x"]
        made, width = f"{op.name}.normalised{tile}", x.shape[1]
        assert isinstance(width, int), "only rows are symbolic"
        self._to.scratch.append(Scratch(made, x.shape, x.dtype))
        kernel = NormKernel(
            "normalise",
            width=width,
            groups=1,
            kind=norm.kind,
            eps=norm.eps,
            shared=False,
            weight=norm.weight,
            bias=norm.bias,
            residual=False,
            residual_scale=1.0,
            activation=x.dtype,
        )
        names = {"weight": op.inputs["norm"], "bias": op.inputs.get("norm_bias", ""), "out": made}
        rows: BatchDim = "tokens" if x.shape[0] == "tokens" else "rows"
        self._to.emit(op, kernel, (ONE, Extent(dim=rows)), names, when=when, chosen=choice.sizes(MatrixTiles))
        return made

    def _for_mlx(
        self, op: Op, kernel: ProjectionKernel, dim: BatchDim, least: int, choice: Choice
    ) -> tuple[tuple[Condition, ...], tuple[tuple[str, str], ...]]:
        """When MLX's matmul takes a projection, and what it takes: a quantised weight is unpacked for it.

        MLX multiplies matrices of one type. f32 is no quicker there than here, and less exact where it becomes TF32, so
        nothing is unpacked to it; nor are logits, whose weight is the largest and whose rows are few.
        """
        layout, out, g = kernel.layout, kernel.epilogue.out, choice.geometry.many_rows.library
        if layout.dtype == kernel.activation == out:
            minimum = g.min_rows
        elif layout.dtype is DType.U8 and kernel.activation == out and out.is_16_bit and dim == "tokens":
            minimum = g.quantised_min_rows
        else:
            return (), ()
        minimum = minimum and max(minimum, least)
        if not 1 <= minimum <= self.limits[dim]:
            return (), ()
        mlx = (Condition(dim=dim, minimum=minimum),)
        if layout.dtype is not DType.U8:
            return mlx, ()
        unpacked = f"{op.name}.unpacked"
        self._to.scratch.append(Scratch(unpacked, (layout.rows, layout.columns), kernel.activation))
        unpack = UnpackKernel(f"{kernel.label}_unpack", (layout,), kernel.activation, g.unpack_unroll)
        grid = (Extent(times=unpack.threadgroups),)
        chosen = choice.sizes("mlx_quantised_min_rows", "unpack_unroll")
        self._to.emit(op, unpack, grid, {"out": unpacked}, mlx=mlx, feeds_mlx=True, chosen=chosen)
        return mlx, (("weight", unpacked),)

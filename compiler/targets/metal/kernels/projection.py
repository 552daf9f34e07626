"""Lowers projections: a launch for each kernel that makes one, and calls of MLX's matmul in their place."""

from mlxr.compiler.artifact.launch import ONE, BatchDim, Condition, Extent
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops import linear
from mlxr.compiler.ir.ops.product import Product
from mlxr.compiler.schedule.geometry import MatrixTiles
from mlxr.compiler.schedule.lowering import Scratch
from mlxr.compiler.schedule.size_record import SizeRecord
from mlxr.compiler.targets.metal.kernels.library_matmul import call_matmul, library_ranges, unpack_weight
from mlxr.compiler.targets.metal.kernels.norm import NormKernel
from mlxr.compiler.targets.metal.kernels.projection_variants import Projection, Variant, divided, variants_of
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers, num_columns, row_count


@lowers(linear.Linear, linear.Projection)
def lower_projection(lowering: MetalLowering, op: Op, attrs: Product) -> None:
    """Adds a launch for each variant and, if MLX's matmul takes some rows, what unpacks the weight and the calls."""
    p = _described(lowering, op)
    variants = divided(variants_of(p), p.most_rows)
    first_row_of = {last: first for first, last in library_ranges(p, variants)}
    for variant in variants:
        if variant.first == p.least_rows and first_row_of:
            unpack_weight(lowering, op, p)
        _emit(lowering, op, p, variant)
        if variant.last in first_row_of:
            call_matmul(lowering, op, p, first_row_of[variant.last], variant.last)


def _described(lowering: MetalLowering, op: Op) -> Projection:
    gather, layout = "rows" in op.inputs, lowering.layouts[op.inputs["weight"]]
    dim: BatchDim = "rows" if gather else "tokens"
    label = "logits" if op.out in lowering.graph.outputs else op.inputs["weight"].rpartition(".")[2]
    return Projection(
        label=label,
        out_features=num_columns(lowering.graph.value(op.out)),
        layout=layout,
        activation=lowering.value(op, "x").dtype,
        norm=lowering.norm_of(op),
        epilogue=lowering.epilogue_of(op),
        gather=gather,
        one_row_alone=lowering.phase == "decode" or gather,
        dim=dim,
        most_rows=lowering.limits[dim],
        choice=lowering.table.choose(Site.of_weight(label, layout)),
    )


def _emit(lowering: MetalLowering, op: Op, p: Projection, variant: Variant) -> None:
    """Adds a variant's launch, and the one that normalises x before it where the variant wants that."""
    kernel, first, last = variant.kernel, variant.first, variant.last
    # A kernel that takes every number of rows has no condition.
    when = None
    if first > 1 or last < p.most_rows:
        maximum = None if last == p.most_rows else last
        when = Condition(dim=p.dim, minimum=first if first > 1 else 0, maximum=maximum)
    grid: tuple[Extent, ...] = (Extent(times=kernel.threadgroups), Extent(dim=p.dim, per=kernel.tile))
    if kernel.tile == 1:
        # A step of prompts has one row of logits, or none.
        grid = (Extent(times=kernel.threadgroups, dim=None if lowering.phase == "decode" else p.dim),)
    x = _normalised(lowering, op, p, kernel.tile, when) if variant.normalises_before else op.inputs["x"]
    sizes: list[type[SizeRecord] | str] = [*variant.sizes]
    yields = None
    if variant.yields and p.library_rows is not None and p.library_rows <= last:
        yields = Condition(dim=p.dim, minimum=p.library_rows)
        sizes.append(p.library_size)
    lowering.emit(
        op,
        kernel,
        grid,
        {"x": x, "out": op.out, "dims": "dims"},
        when=when,
        yields=yields,
        chosen=p.choice.sizes(*sizes, without=variant.unused),
    )


def _normalised(lowering: MetalLowering, op: Op, p: Projection, tile: int, when: Condition | None) -> str:
    """The buffer of x after its norm, for which there is a launch under the same condition."""
    x, norm = lowering.value(op, "x"), p.norm
    if norm is None:
        return op.inputs["x"]
    normalised = f"{op.name}.normalised{tile}"
    lowering.scratch.append(Scratch(normalised, x.shape, x.dtype))
    kernel = NormKernel(
        "normalise",
        width=num_columns(x),
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
    names = {"weight": op.inputs["norm"], "bias": op.inputs.get("norm_bias", ""), "out": normalised}
    lowering.emit(op, kernel, (ONE, row_count(x)), names, when=when, chosen=p.choice.sizes(MatrixTiles))
    return normalised

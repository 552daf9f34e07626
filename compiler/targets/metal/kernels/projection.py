"""Lowers projections: a launch for each kernel, and calls of MLX's matmul that replace some of them."""

from mlxr.compiler.artifact.launch import Condition, Extent
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.linear import Linear, Projection
from mlxr.compiler.ir.ops.product import Product
from mlxr.compiler.ir.tensor import layer_buffer
from mlxr.compiler.schedule.size_record import SizeRecord
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts, facts_of
from mlxr.compiler.targets.metal.kernel_parts.projection_kernel import ProjectionKernel
from mlxr.compiler.targets.metal.kernels.add_block import add_block, after_block, normalises_sum
from mlxr.compiler.targets.metal.kernels.library_matmul import call_matmul, library_ranges, unpack_weight
from mlxr.compiler.targets.metal.kernels.normalise import normalise
from mlxr.compiler.targets.metal.kernels.projection_variants import (
    ProjectionVariant,
    divided,
    variants_of,
    with_block,
)
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers


@lowers(Linear, Projection)
def lower_projection(lowering: MetalLowering, op: Op, _: Product) -> None:
    """Adds a launch for each variant with its rows, and calls of MLX's matmul for the rows that it takes."""
    p = facts_of(lowering, op)
    variants = [with_block(variant, p) for variant in divided(variants_of(p), p.most_rows)]
    first_row_of = {last: first for first, last in library_ranges(p, variants)}
    after_sum = after_block(op)
    for variant in variants:
        if variant.first == p.least_rows and first_row_of:
            unpack_weight(lowering, op, p)
        when, of = _condition(p, variant), op if variant.kernel.added else after_sum
        x = of.inputs["x"]
        if p.added and variant.kernel.added is None:
            normed = f"{op.name}.normalised{variant.kernel.tile}"
            both = variant.normalises_before and normalises_sum(p)
            add_block(lowering, op, p, when, normed if both else None)
            x = normed if both else x
        if variant.normalises_before and x == of.inputs["x"]:
            x = normalise(lowering, of, p, variant.kernel.tile, when)
        _launch(lowering, of, p, variant, when, x)
        if variant.last in first_row_of:
            call_matmul(lowering, after_sum, p, first_row_of[variant.last], variant.last)


def _condition(p: ProjectionFacts, variant: ProjectionVariant) -> Condition | None:
    """The condition of the steps that a variant takes; None for a kernel that takes every number of rows."""
    if variant.first == 1 and variant.last == p.most_rows:
        return None
    maximum = None if variant.last == p.most_rows else variant.last
    return Condition(dim=p.dim, minimum=variant.first if variant.first > 1 else 0, maximum=maximum)


def _launch(
    lowering: MetalLowering, op: Op, p: ProjectionFacts, variant: ProjectionVariant, when: Condition | None, x: str
) -> None:
    """Adds the launch of a variant, which reads the buffer x."""
    kernel, last = variant.kernel, variant.last
    grid: tuple[Extent, ...] = (Extent(times=kernel.threadgroups), Extent(dim=p.dim, per=kernel.tile))
    if kernel.tile == 1:
        # A prefill step has one row of logits, or none.
        grid = (Extent(times=kernel.threadgroups, dim=None if lowering.phase == "decode" else p.dim),)
    sizes: list[type[SizeRecord] | str] = [*variant.sizes]
    yields = None
    if variant.yields and p.library_rows is not None and p.library_rows <= last:
        yields = Condition(dim=p.dim, minimum=p.library_rows)
        sizes.append(p.library_size)
    lowering.emit(
        op,
        kernel,
        grid,
        {"x": x, "out": op.out, "dims": "dims"} | _layer_of_columns(op) | _norm_in_type(lowering, op, kernel),
        when=when,
        yields=yields,
        chosen=p.choice.sizes(*sizes, without=variant.unused),
    )


def _norm_in_type(lowering: MetalLowering, op: Op, kernel: ProjectionKernel) -> dict[str, str]:
    """The norm's weight in the type that a kernel reads, if that is another one."""
    dtype = kernel.norm.weight if kernel.norm else None
    if dtype is None or dtype is lowering.optional_dtype(op, "norm"):
        return {}
    return {"norm": lowering.cast(op.inputs["norm"], dtype)}


def _layer_of_columns(op: Op) -> dict[str, str]:
    """The buffer that tells which layer's columns multiply the result, if any do."""
    if op.attrs_as(Product).finish.times_first is None:
        return {}
    assert op.layer is not None, "columns are those of a layer"
    return {"layer": layer_buffer(op.layer)}

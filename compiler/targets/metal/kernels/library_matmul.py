"""MLX's matmul instead of a projection's kernels: the rows that it takes, the launch that unpacks, and its call."""

from collections.abc import Sequence

from mlxr.compiler.artifact.launch import Condition, Extent
from mlxr.compiler.artifact.library_call import LibraryPort, MatmulCall
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.product import Product
from mlxr.compiler.schedule.lowering import Scratch
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts
from mlxr.compiler.targets.metal.kernels.projection_variants import ProjectionVariant
from mlxr.compiler.targets.metal.kernels.unpack import UnpackKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering

_NORM_PORTS = ("norm", "norm_bias")
"""The ports of an op for the weights of its norm."""


def library_ranges(p: ProjectionFacts, variants: Sequence[ProjectionVariant]) -> list[tuple[int, int]]:
    """The first and the last row of each range that MLX's matmul takes from the variants that yield to it.

    Args:
        p: the projection.
        variants: its variants in order of rows, as `divided` returns them.
    """
    ranges: list[tuple[int, int]] = []
    for variant in variants:
        if p.library_rows is None or not variant.yields or variant.last < p.library_rows:
            continue
        first = max(variant.first, p.library_rows)
        if ranges and ranges[-1][1] == first - 1:
            first = ranges.pop()[0]
        ranges.append((first, variant.last))
    return ranges


def unpack_weight(lowering: MetalLowering, op: Op, p: ProjectionFacts) -> None:
    """Adds the launch that unpacks the weight, if it is quantised."""
    if p.library_rows is None or not p.is_quantised:
        return
    layout = p.layout
    lowering.scratch.append(Scratch(_unpacked(op), (layout.rows, layout.columns), p.activation))
    kernel = UnpackKernel(f"{p.label}_unpack", (layout,), p.activation, p.many_rows.library.unpack_unroll)
    lowering.emit(
        op,
        kernel,
        (Extent(times=kernel.threadgroups),),
        {"out": _unpacked(op)},
        when=Condition(dim=p.dim, minimum=p.library_rows),
        needs_library=True,
        chosen=p.choice.sizes(p.library_size, "unpack_unroll"),
    )


def call_matmul(lowering: MetalLowering, op: Op, p: ProjectionFacts, first: int, last: int) -> None:
    """Adds the call of MLX's matmul for a range of rows."""
    product, buffers = op.attrs_as(Product), dict(op.inputs)
    ports: list[LibraryPort] = []
    for port, name in op.inputs.items():
        value = lowering.tensor(name)
        dtype = lowering.layouts[name].dtype if name in lowering.layouts else value.dtype
        if port == "weight" and p.is_quantised:
            buffers[port], dtype = _unpacked(op), p.activation
        elif port in _NORM_PORTS and dtype is not p.activation:
            buffers[port], dtype = lowering.cast(name, p.activation), p.activation
        ports.append(LibraryPort(name=port, dtype=dtype, shape=value.shape))
    call = MatmulCall(
        function="matmul",
        label=f"mlx.{op.kind}",
        ports=tuple(ports),
        dtype=p.epilogue.out,
        norm=product.norm,
        finish=product.finish,
        columns=p.layout.columns if p.x_columns else None,
    )
    maximum = None if last == p.most_rows else last
    lowering.call_library(op, call, buffers, when=Condition(dim=p.dim, minimum=first, maximum=maximum))


def _unpacked(op: Op) -> str:
    """The buffer of an op's weight, unpacked."""
    return f"{op.name}.unpacked"

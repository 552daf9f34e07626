"""What a projection's op says of its norm and its epilogue, for the contexts of kernels."""

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.product import Product
from mlxr.compiler.schedule.lowering import Lowering
from mlxr.compiler.targets.metal.kernels.projection_kernels import Epilogue, Norm


def norm_of(lowering: Lowering, op: Op) -> Norm | None:
    """The norm of a projection's x; None where it has none."""
    norm, weight = op.attrs_as(Product).norm, lowering.optional_dtype(op, "norm")
    if norm is None or weight is None:
        return None
    return Norm(norm.kind, norm.eps, weight, lowering.optional_dtype(op, "norm_bias"))


def epilogue_of(lowering: Lowering, op: Op) -> Epilogue:
    """What a projection does with its finished sums."""
    finish = op.attrs_as(Product).finish
    return Epilogue(
        out=lowering.graph.value(op.out).dtype,
        bias=lowering.optional_dtype(op, "bias"),
        residual="residual" in op.inputs,
        gate=lowering.optional_dtype(op, "gate"),
        activation_kind=finish.activation,
        gated=finish.gated,
        limit=finish.limit,
        residual_scale=finish.residual_scale,
        out_scale=finish.out_scale,
        out_cap=finish.out_cap,
    )

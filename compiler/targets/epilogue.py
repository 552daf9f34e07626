"""What a projection does with its finished sums, for the kernels of all targets."""

from collections.abc import Callable
from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.product import Finish, Product
from mlxr.compiler.schedule.kernel import Port


@dataclass(frozen=True, kw_only=True)
class Epilogue(Finish):
    """What happens to a finished sum y: bias, activation, factor, cap, gate, and the residual, in this order.

    Attributes:
        out: type of the result, and of the residual.
        bias: type of the bias; None without one.
        gate: type of the gate, [tokens, 1], by whose sigmoid y is multiplied; None without one.
        residual: whether one is added.
    """

    out: DType
    bias: DType | None = None
    gate: DType | None = None
    residual: bool = False

    @property
    def halves(self) -> int:
        """Weight rows of an output: gated projections have one of the gate and one of the up projection."""
        return 2 if self.gated else 1

    @property
    def ports(self) -> tuple[Port, ...]:
        """What it binds."""
        ports = [("bias", self.bias), ("residual", self.out if self.residual else None), ("gate", self.gate)]
        return tuple((name, dtype) for name, dtype in ports if dtype)


def epilogue_of(op: Op, out: DType, dtype_of: Callable[[str], DType | None]) -> Epilogue:
    """The epilogue of an op that multiplies with a weight.

    Args:
        op: the op.
        out: type of its result as the kernel writes it.
        dtype_of: the type of a port as the kernel reads it; None where the op does not bind it.
    """
    finish = op.attrs_as(Product).finish
    return Epilogue(
        activation=finish.activation,
        gated=finish.gated,
        limit=finish.limit,
        residual_scale=finish.residual_scale,
        out_scale=finish.out_scale,
        out_cap=finish.out_cap,
        out=out,
        bias=dtype_of("bias"),
        gate=dtype_of("gate"),
        residual="residual" in op.inputs,
    )

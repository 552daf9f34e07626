"""The epilogue of a projection: the steps after its sums, for the kernels of all targets."""

from collections.abc import Callable
from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.product import Finish, Product
from mlxr.compiler.schedule.kernel import Port


@dataclass(frozen=True, kw_only=True)
class Epilogue(Finish):
    """The steps after a finished sum y: bias, activation, factor, cap, limit, gate and residual, in this order.

    Attributes:
        out: type of the result, and of the residual.
        bias: type of the bias; None without a bias.
        alpha_p, alpha_n: types of the activation's learned numbers, [1] each; None where it has none.
        gate: type of the gate, [tokens, 1], whose sigmoid multiplies y; None without a gate.
        residual: whether a residual is added.
        times: type of what multiplies y before the gate does, [tokens, times_width], from column times_first on; None
            for nothing.
        times_width: its columns.
    """

    out: DType
    bias: DType | None = None
    gate: DType | None = None
    alpha_p: DType | None = None
    alpha_n: DType | None = None
    residual: bool = False
    times: DType | None = None
    times_width: int = 0

    @property
    def halves(self) -> int:
        """Weight rows per output: gated projections have one row of the gate and one of the up projection."""
        return 2 if self.gated else 1

    @property
    def ports(self) -> tuple[Port, ...]:
        """The input ports that it adds to a kernel."""
        residual = self.out if self.residual else None
        ports = [("bias", self.bias), ("residual", residual), ("gate", self.gate), ("times", self.times)]
        ports += [("alpha_p", self.alpha_p), ("alpha_n", self.alpha_n)]
        return tuple((name, dtype) for name, dtype in ports if dtype)


def epilogue_of(op: Op, out: DType, dtype_of: Callable[[str], DType | None], times_width: int = 0) -> Epilogue:
    """The epilogue of an op that multiplies with a weight.

    Args:
        op: the op.
        out: the type of the result that the kernel writes.
        dtype_of: gives the type in which the kernel reads a port; None if the op does not bind it.
        times_width: columns of what the op's result is multiplied by.
    """
    finish = op.attrs_as(Product).finish
    return Epilogue(
        activation=finish.activation,
        gated=finish.gated,
        limit=finish.limit,
        residual_scale=finish.residual_scale,
        out_scale=finish.out_scale,
        out_cap=finish.out_cap,
        out_limit=finish.out_limit,
        out=out,
        bias=dtype_of("bias"),
        gate=dtype_of("gate"),
        alpha_p=dtype_of("alpha_p"),
        alpha_n=dtype_of("alpha_n"),
        residual="residual" in op.inputs,
        times_first=finish.times_first,
        times=dtype_of("times"),
        times_width=times_width,
    )

"""Norms of x that a kernel fuses into its product with a weight."""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import NormKind
from mlxr.compiler.ir.ops.product import Product
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.lowering import MetalLowering


@dataclass(frozen=True)
class FusedNorm:
    """A norm of the rows of x.

    Attributes:
        kind: `rms` or `layer`.
        eps: added to the mean square, or to the variance.
        weight, bias: element types of the weight and of the bias; None: there is none.
    """

    kind: NormKind
    eps: float
    weight: DType | None
    bias: DType | None = None

    @property
    def ports(self) -> tuple[Port, ...]:
        """The ports of the weight and of the bias, if there are any."""
        return tuple((name, dtype) for name, dtype in (("norm", self.weight), ("norm_bias", self.bias)) if dtype)


def fused_norm_of(lowering: MetalLowering, op: Op) -> FusedNorm | None:
    """The norm of x in an op that multiplies by a weight; None: no norm."""
    norm = op.attrs_as(Product).norm
    if norm is None:
        return None
    types = (lowering.optional_dtype(op, port) for port in ("norm", "norm_bias"))
    return FusedNorm(norm.kind, norm.eps, *types)

"""The sum of two products, of two blocks that add to the residual stream beside each other."""

import math
from dataclasses import dataclass, replace

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.checks import matrix, require, require_residual, require_vector, weight_matrix
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import FUSED_STAGES
from mlxr.compiler.ir.ops.linear import Projection
from mlxr.compiler.ir.ops.product import Finish, Product
from mlxr.compiler.ir.tensor import Tensor, Tensors
from mlxr.compiler.ir.work import Dims, OpWork, Use

WEIGHTS = ("weight", "second_weight")
"""The ports of weights."""


@dataclass(frozen=True)
class ProjectionSum(Product):
    """Two projections, of which the second one adds its result to that of the first one.

    Attributes:
        dtype: the type of the result.
        residual_scale: factor of both where they are added to the residual.
    """

    name = "projection_sum"
    summary = "residual + residual_scale * (x @ weight.T + bias + second_x @ second_weight.T + second_bias)"
    inputs = ("x", "weight", "second_x", "second_weight")
    optional = ("bias", "second_bias", "residual")
    stages = FUSED_STAGES

    dtype: DType
    residual_scale: float = 1.0

    @property
    def finish(self) -> Finish:
        """See `Product`."""
        return Finish(residual_scale=self.residual_scale)

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, width], weight [features, width], and the second ones -> out [tokens, features]."""
        rows, features = matrix(t, "x")[0], weight_matrix(t, "weight")[0]
        for prefix in ("", "second_"):
            (own_rows, width), (own_features, columns) = matrix(t, f"{prefix}x"), weight_matrix(t, f"{prefix}weight")
            require(columns == width, f"{prefix}weight has {columns} columns, {prefix}x has {width}")
            require((own_rows, own_features) == (rows, features), "the two products have different shapes")
            require_vector(t, f"{prefix}bias", features)
        out = Tensor((rows, features), self.dtype)
        require_residual(t, out)
        return {"out": out}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """That of both products, or of the one whose weight there is."""
        elements = sum(math.prod(weight_matrix(use.inputs, port)) for port in WEIGHTS if port in use.inputs)
        return OpWork(flops=2 * elements * dims["tokens"])


def parts_of(op: Op, between: str) -> tuple[Op, Op]:
    """The two projections that a sum is, whose first result is named `between`."""
    attrs = op.attrs_as(ProjectionSum)
    own = Projection(attrs.dtype, residual_scale=attrs.residual_scale)
    first = {port: name for port, name in op.inputs.items() if not port.startswith("second_")}
    second = {port.removeprefix("second_"): name for port, name in op.inputs.items() if port not in first}
    return (
        replace(op, attrs=own, inputs=first, outputs={"out": between}),
        replace(op, attrs=own, inputs=second | {"residual": between}),
    )

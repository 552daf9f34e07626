"""The row of a token in latent attention, as kernels make it."""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.latent import LatentRows
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH
from mlxr.compiler.targets.metal.kernel_parts.rope_kernel import WhollyRotated
from mlxr.compiler.targets.metal.lowering import MetalLowering, num_columns


@dataclass(frozen=True)
class LatentRow(WhollyRotated):
    """[norm(latent) | rope(key)], made by the lanes of a simdgroup, which hold every 32nd element.

    Attributes:
        activation, frequencies, rope_layout, rope_scale: see `WhollyRotated`: of the key.
        width, first: columns of the projection, and the one with which the latent begins.
        kv_rank: elements of the latent.
        kv_norm: element type of the weights of its norm.
        eps: added to the mean square.
    """

    width: int
    first: int
    kv_rank: int
    kv_norm: DType
    eps: float

    @property
    def places(self) -> tuple[Port, ...]:
        """The ports of the norm's weights, and of the tokens' slots."""
        return (("kv_norm", self.kv_norm), ("slots", DType.I32))

    @property
    def row_dim(self) -> int:
        """Elements of a row."""
        return self.kv_rank + self.rotary_dim

    @property
    def of_lane(self) -> int:
        """Elements of a row that a lane has at most."""
        return -(-self.row_dim // SIMD_WIDTH)


def latent_row(lowering: MetalLowering, op: Op, attrs: LatentRows, port: str) -> LatentRow:
    """The row that an op makes of its input at `port`."""
    x = lowering.value(op, port)
    return LatentRow(
        activation=x.dtype,
        width=num_columns(x),
        first=attrs.first,
        kv_rank=attrs.kv_rank,
        kv_norm=lowering.value(op, "kv_norm").dtype,
        frequencies=lowering.value(op, "frequencies").data,
        rope_layout=attrs.rope_layout,
        rope_scale=attrs.rope_scale,
        eps=attrs.eps,
    )

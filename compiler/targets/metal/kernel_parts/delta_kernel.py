"""The base of the kernels that compute the gated delta rule."""

from dataclasses import dataclass

from mlxr.compiler.errors import PlanError
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.gated_delta import DeltaHeads
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH, MetalKernel

_QUAD = 4
TILE = 8
"""Columns of a state that a simdgroup has."""
_SHARING = SIMD_WIDTH * _QUAD // TILE
"""Lanes that share a column."""


@dataclass(frozen=True)
class DeltaKernel(MetalKernel):
    """Base of the kernels that compute the rule.

    Attributes:
        num_layers: layers that have rows of the states.
        heads: the heads.
    """

    num_layers: int
    heads: DeltaHeads

    @property
    def key_of_head(self) -> str:
        """The head of keys that `head` has, in Metal."""
        if self.heads.tiled:
            return f"(head % {self.heads.num_key_heads}u)"
        return "head" if self.heads.ratio == 1 else f"(head / {self.heads.ratio}u)"

    @property
    def slot(self) -> int:
        """Numbers of a slot: all layers' states."""
        return self.num_layers * self.heads.state_size

    @property
    def rows(self) -> int:
        """Rows of a state that a lane has."""
        return -(-self.heads.key_dim // _SHARING)

    @property
    def ragged_rows(self) -> bool:
        """Whether some lanes have rows past the last one."""
        return self.heads.key_dim != self.rows * _SHARING

    @property
    def tiles(self) -> int:
        """Tiles of a head's columns."""
        return -(-self.heads.value_dim // TILE)


def check_quads(op: Op, heads: DeltaHeads) -> None:
    """Raises PlanError where rows of states cannot be read 4 elements at a time."""
    if heads.value_dim % _QUAD:
        raise PlanError(
            f"op {op.name!r} has values of {heads.value_dim} elements, and Metal kernels read {_QUAD} at a time: "
            "compile with --target cpu"
        )

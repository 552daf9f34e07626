"""Ops that depend on a token's position: rotation of queries and keys, and temperature of queries."""

from dataclasses import dataclass, replace

from mlxr.compiler.ir.checks import require, require_heads, require_positive
from mlxr.compiler.ir.division import Holdings
from mlxr.compiler.ir.op_kind import SOURCE_STAGES, Division, OpKind, RopeLayout
from mlxr.compiler.ir.ops.packed_heads import check_rotation
from mlxr.compiler.ir.tensor import Tensor, Tensors
from mlxr.compiler.spec.share import Share


@dataclass(frozen=True)
class Rope(OpKind):
    """Rotary position embedding.

    Attributes:
        num_heads, head_dim: heads of x, and elements of each.
        rotary_dim: number of leading elements of a head that are rotated.
        rope_layout: `half` pairs element i with i + rotary_dim / 2, `interleaved` 2i with 2i + 1.
        rope_scale: factor of the cosines and sines.
    """

    name = "rope"
    summary = "rotary position embedding of every head"
    family = "rope"
    inputs = ("x", "positions", "frequencies")
    stages = SOURCE_STAGES

    num_heads: int
    head_dim: int
    rotary_dim: int
    rope_layout: RopeLayout
    rope_scale: float

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, heads * head_dim], positions [tokens], frequencies [rotary_dim / 2] -> out like x."""
        require_heads(t, "x", self.num_heads, self.head_dim)
        check_rotation(t, self.rotary_dim, self.rope_scale)
        require(self.rotary_dim > 0, "rotary_dim is 0; expected a rotation, or no rope op")
        return {"out": t["x"]}

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The rank's heads."""
        heads = has["x"].columns
        num_heads = self.num_heads if heads is None else heads.count_of(share)
        return Division(replace(self, num_heads=num_heads), has["x"])


@dataclass(frozen=True)
class Temperature(OpKind):
    """A factor of the queries that grows with their position.

    Attributes:
        beta: the rate of growth.
        original_context: below this position, queries do not change.
        first_position: what positions are counted from here.
    """

    name = "temperature"
    summary = "x * (1 + beta * ln(1 + floor((position + first_position) / original_context)))"
    family = "rope"
    inputs = ("x", "positions")
    stages = SOURCE_STAGES

    beta: float
    original_context: int
    first_position: int = 0

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, heads * head_dim], positions [tokens] -> out like x."""
        require_positive("beta", self.beta)
        require_positive("original_context", self.original_context)
        return {"out": t["x"]}

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The rank's heads."""
        return Division(self, has["x"])

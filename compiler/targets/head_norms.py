"""The norms that attention takes of heads before it rotates them, for the kernels of all targets."""

from collections.abc import Callable
from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op, Value
from mlxr.compiler.ir.ops.attention import PackedAttention


@dataclass(frozen=True)
class HeadNorms:
    """The norm of each head, by the root of its mean square.

    Attributes:
        eps: added to the mean square.
        each: whether each head has weights of its own, [heads * head_dim]; else all have the same, [head_dim].
        q, k: types of the weights of queries and keys; None: there are none.
        values: whether values are normalised, too, without weights.
        values_from_keys: whether the projection has no values: they are its keys, before their norm.
    """

    eps: float
    each: bool
    q: DType | None
    k: DType | None
    values: bool
    values_from_keys: bool

    @property
    def ports(self) -> tuple[tuple[str, DType], ...]:
        """The ports of the weights."""
        return tuple((name, dtype) for name, dtype in (("q_norm", self.q), ("k_norm", self.k)) if dtype)

    @property
    def in_words(self) -> str:
        """What becomes of heads, for the head of a kernel."""
        values = "; so are the values, without weights" if self.values else ""
        return f"Queries and keys are normalised first{values}{'; values are keys' if self.values_from_keys else ''}."


def head_norms(op: Op, value_of: Callable[[Op, str], Value]) -> HeadNorms | None:
    """The norms of an op; None if it has none. `value_of` gives the value that is bound to a port."""
    attrs = op.attrs_as(PackedAttention)
    if attrs.norm_eps is None:
        return None
    q, k = (value_of(op, port).dtype if port in op.inputs else None for port in ("q_norm", "k_norm"))
    each = attrs.norm_scope == "heads"
    return HeadNorms(attrs.norm_eps, each, q, k, attrs.norms_values, attrs.values_from_keys)

"""The gate by which attention multiplies its result: where its numbers lie, for the kernels of all targets."""

from collections.abc import Callable
from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op, Value
from mlxr.compiler.ir.op_kind import GateKind
from mlxr.compiler.ir.ops.attention import PackedAttention


@dataclass(frozen=True)
class HeadGate:
    """The gate of all heads: `size` numbers a head from column `first` of a value [tokens, columns].

    Attributes:
        kind: the function of the numbers.
        dtype: their type.
        columns, first, size: where they lie; size is 1, or the elements of a head.
    """

    kind: GateKind
    dtype: DType
    columns: int
    first: int
    size: int


def head_gate(op: Op, value_of: Callable[[Op, str], Value]) -> HeadGate | None:
    """The gate of an op; None if it has none. `value_of` gives the value that is bound to a port."""
    attrs = op.attrs_as(PackedAttention)
    if attrs.gate is None:
        return None
    value = value_of(op, "gate")
    columns = value.shape[1]
    assert isinstance(columns, int), "only rows have symbolic dims"
    return HeadGate(attrs.gate, value.dtype, columns, attrs.gate_first, attrs.gate_size)

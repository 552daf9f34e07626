"""Where kernels of all targets find what they read of their inputs: some neighbouring columns of wider values."""

from collections.abc import Mapping
from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.schedule.lowering import Lowering


@dataclass(frozen=True)
class Columns:
    """Where an input of tokens has what is read of it: its element type, its columns, and the first that is read."""

    dtype: DType
    width: int
    first: int


def columns_at(lowering: Lowering, op: Op, firsts: Mapping[str, int]) -> dict[str, Columns]:
    """By port: the columns of an op's inputs that begin with these; without ports that nothing is bound to."""
    found = {}
    for port, first in firsts.items():
        if port in op.inputs:
            value = lowering.value(op, port)
            width = value.shape[1]
            assert isinstance(width, int), "only rows have symbolic dims"
            found[port] = Columns(value.dtype, width, first)
    return found

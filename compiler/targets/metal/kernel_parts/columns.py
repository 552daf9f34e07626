"""Where kernels find what they read of their inputs: some neighbouring columns of wider values."""

from collections.abc import Mapping
from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.targets.metal.lowering import MetalLowering, num_columns


@dataclass(frozen=True)
class Columns:
    """Where an input of tokens has what is read of it: its element type, its columns, and the first that is read."""

    dtype: DType
    width: int
    first: int


def columns_at(lowering: MetalLowering, op: Op, firsts: Mapping[str, int]) -> dict[str, Columns]:
    """By port: the columns of an op's inputs that begin with these; without ports that nothing is bound to."""
    bound = {port: lowering.value(op, port) for port in firsts if port in op.inputs}
    return {port: Columns(value.dtype, num_columns(value), firsts[port]) for port, value in bound.items()}
